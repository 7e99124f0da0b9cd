"""Faults, losses and restarts of a fleet, and checks that nothing is lost or changed."""
