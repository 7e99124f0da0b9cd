"""The tasks built into the repository: their prompts and renderers."""
