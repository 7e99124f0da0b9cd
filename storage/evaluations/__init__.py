"""Figures of judged images, and reproductions of runs."""
