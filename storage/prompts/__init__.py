"""Prompts: files, datasets on disk, and those of a run."""
