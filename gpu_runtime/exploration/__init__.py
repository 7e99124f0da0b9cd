"""Which seeds to draft and to keep: strategies, the planner, exact selection, the monitor of staleness."""
