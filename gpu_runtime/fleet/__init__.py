"""The devices and scorers of a run: provisioned, given weights, watched, replaced."""
