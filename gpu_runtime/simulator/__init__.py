"""Whole runs under a virtual clock, with the loop, groups and decisions of live runs. Pure."""
