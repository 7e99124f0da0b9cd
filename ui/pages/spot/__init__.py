"""Every device's work, the use of its paid time, and losses."""
