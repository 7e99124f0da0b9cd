"""What exploration brings: learning curves with and without it, and what they cost on a fleet."""
