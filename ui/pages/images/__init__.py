"""Images of the held-out prompts over the iterations, with the same seeds."""
