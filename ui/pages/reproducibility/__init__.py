"""Reproductions of recorded runs: the same result or not, and the differences."""
