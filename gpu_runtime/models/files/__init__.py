"""A model's files: where they lie, whether they are whole, and loading and writing them."""
