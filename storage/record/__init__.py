"""The record of runs: files in their folders, SQL over them, and making rows again."""
