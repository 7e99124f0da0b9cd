"""A home's Prefect server, its pages and metrics, and the processes of `spotlight up`."""
