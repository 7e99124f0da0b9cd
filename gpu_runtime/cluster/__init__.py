"""Clusters: what starts a run's processes and carries their calls."""
