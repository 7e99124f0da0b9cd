"""The families whose parts come from a diffusers pipeline, one file each, and their common base."""
