"""Reproductions of recorded runs: whether results are the same, and the differences."""
