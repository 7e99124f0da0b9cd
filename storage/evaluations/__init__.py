"""Figures of judged images, and runs that were done again."""
