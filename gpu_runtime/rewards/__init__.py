"""Scorers, one file each, and what guards a run against their failures."""
