"""Models as they come: families beside their own pipelines, embedded models before training, prompt files."""
