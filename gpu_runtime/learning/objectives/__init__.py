"""The objectives, one file each, with loss and gradients, and their common base."""
