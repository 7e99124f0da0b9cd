"""Pre-training of the embedded models."""
