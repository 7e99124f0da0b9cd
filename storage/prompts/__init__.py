"""Prompts: files, datasets on disk, and a run's prompts."""
