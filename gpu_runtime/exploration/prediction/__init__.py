"""Predictions of the scores of further drafts, and of the gain expected from them."""
