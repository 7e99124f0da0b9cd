"""Results of `spotlight evaluate`: overall, by tag, image by image, and compared."""
