"""The work of every device, the use of its paid time, and its losses."""
