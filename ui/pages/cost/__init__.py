"""The bill by phase, market and state, and what it would be on demand only."""
