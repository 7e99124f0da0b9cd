"""Predictions of future drafts' scores, and of the gain expected from them."""
