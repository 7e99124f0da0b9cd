"""All runs in a table, and some of them side by side: curves, cost, time to a score."""
