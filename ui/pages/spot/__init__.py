"""What every device did, what its paid time went into, and what was lost."""
