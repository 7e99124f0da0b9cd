"""Readers of a run's record: MLflow, W&B, TensorBoard and one's own, each a copy to compare runs in."""
