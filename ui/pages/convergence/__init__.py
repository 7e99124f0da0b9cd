"""The course of a run: better or not, how fast, at what price, and the health of its training."""
