"""Noise streams, the SDE and ODE step with its log-probability, and a sampler that can stop at any step."""
