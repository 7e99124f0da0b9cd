"""Whether a run gets better, how fast, at what price, and whether its training is healthy."""
