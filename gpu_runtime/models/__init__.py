"""Diffusion transformers: the protocol of a family, the families by name, and loading the configured one."""
