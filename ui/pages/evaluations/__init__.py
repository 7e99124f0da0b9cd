"""What `spotlight evaluate` has scored: overall, by tag, image by image, and compared."""
