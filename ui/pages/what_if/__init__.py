"""Simulated time and cost of a run on a fleet, by policy, before anything is rented."""
