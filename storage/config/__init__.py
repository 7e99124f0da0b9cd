"""The configuration of a run: its sections, its sources, its errors."""
