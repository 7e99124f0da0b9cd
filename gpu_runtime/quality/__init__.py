"""What images look like, whatever a reward says: light, edges, grain, variety, distance to the truth."""
