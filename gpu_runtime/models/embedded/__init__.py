"""The embedded model: a small transformer with its files in the repository, its text encoder and codec."""
