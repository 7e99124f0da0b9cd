"""The diffusion transformers: one file a family, their files, their checks, their memory."""
