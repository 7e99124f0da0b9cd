"""Refusals before anything starts."""
