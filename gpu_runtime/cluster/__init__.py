"""Clusters, which start a run's processes and carry their calls."""
