"""Groups of devices that share a sequence, and when they change."""
