"""Rules that say what is wrong with a run, by how much, and which setting fixes it."""
