"""Diffusion transformers: what a family offers, the families by name, and loading the configured one."""
