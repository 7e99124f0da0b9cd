"""Faults on live runs, drawn or replayed from a trace."""
