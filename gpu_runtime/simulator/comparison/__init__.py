"""Ways to spend devices and dollars on a run: what they come to in simulated futures, and to a score."""
