"""The record of runs: files in their folders, and SQL over them."""
