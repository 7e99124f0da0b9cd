"""Comparison of ways to spend devices and dollars on a run, over simulated futures and to a score."""
