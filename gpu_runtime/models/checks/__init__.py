"""Checks of a pipeline's model before its weights are loaded: its outline, sizes, and memory need."""
