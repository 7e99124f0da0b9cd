"""The objectives, one file each: loss and gradients together, and what they have in common."""
