"""Finds, checks, loads and writes a model's files."""
