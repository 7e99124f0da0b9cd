"""Scorers: their protocol, all of them by name, rules without a model, and a guard against failures."""
