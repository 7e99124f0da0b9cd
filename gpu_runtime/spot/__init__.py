"""Spot instances: their preemption notices, prices and recorded traces."""
