"""The cost of orchestration against bare compute, and of simulated runs against live ones."""
