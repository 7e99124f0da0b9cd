"""The devices and scorers of a run: provisioned, watched, replaced; and what they do besides rollouts."""
