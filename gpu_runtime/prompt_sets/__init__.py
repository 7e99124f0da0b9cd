"""Makers of prompt files."""
