"""Choosing seeds to draft and keep: strategies, planner, exact selection, staleness monitor."""
