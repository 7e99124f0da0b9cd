"""What is refused before anything starts."""
