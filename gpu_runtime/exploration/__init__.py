"""Which seeds to draft and to keep: the planner, exact selection, the monitor of staleness."""
