"""Scorers: what one offers, all of them by name, rules without a model, and a guard against failures."""
