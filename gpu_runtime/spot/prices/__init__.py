"""Prices of devices: in books, and over time."""
