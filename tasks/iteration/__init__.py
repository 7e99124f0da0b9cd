"""The phases of an iteration as tasks, and the session that records them."""
