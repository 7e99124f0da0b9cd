"""The bill by phase, market and state, compared with on-demand devices only."""
