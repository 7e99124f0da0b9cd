"""Whole runs under a virtual clock: the loop, the groups and the decisions are those of live runs. Pure."""
