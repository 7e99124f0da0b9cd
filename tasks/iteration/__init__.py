"""The phases of an iteration as tasks, and where what they did is kept."""
