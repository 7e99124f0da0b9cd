"""Queries over the record, for the dashboard and the command line."""
