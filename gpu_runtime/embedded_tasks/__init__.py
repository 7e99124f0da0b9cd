"""The tasks that the repository carries: their prompts, their renderers, their judges."""
