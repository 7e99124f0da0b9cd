"""A run's devices and scorers: how they are provisioned, watched and replaced, and their other work."""
