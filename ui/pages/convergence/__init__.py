"""A run's progress: whether it improves, how fast, at what price, and the health of its training."""
