"""Runs in DuckDB: tables, records, journals, and making rows again."""
