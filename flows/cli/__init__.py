"""The `spotlight` command line."""
