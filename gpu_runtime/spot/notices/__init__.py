"""Preemption notices: one file per provider, and the watch for them."""
