"""Faults, losses and restarts of a fleet, and checks that they lose and change nothing."""
