"""What one device does, what can be asked of it, and the history that it writes."""
