"""The pages of the dashboard, one folder each; no page imports another."""
