"""What providers of spot instances say, ask for and record."""
