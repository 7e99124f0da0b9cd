"""The process of a run: how signals and cancellation end it, and what notes an end without a word."""
