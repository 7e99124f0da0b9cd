"""Simulated devices that share samples, in groups that the functions of a live run plan. Pure."""
