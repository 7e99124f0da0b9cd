"""What is known and refused of a pipeline's model before its weights are loaded."""
