"""Image statistics beside the reward: light, edges, grain, variety, distance to the truth."""
