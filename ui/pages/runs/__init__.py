"""All runs in a table, and selected ones side by side: curves, cost, time to a score."""
