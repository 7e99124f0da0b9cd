"""Faults planted in the code, and the tests that notice them."""
