"""Rules that find a run's problems, their extent, and the setting that fixes them."""
