"""MLflow beside a run: a copy of its figures, images and report, to compare runs in."""
