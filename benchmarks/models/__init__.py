"""Models before training: families beside their own pipelines, embedded models, and prompt files."""
