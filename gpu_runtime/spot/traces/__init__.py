"""Recorded and generated traces of spot instances, and their replay. Pure."""
