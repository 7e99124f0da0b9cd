"""A home's Prefect server, what it serves, and what `spotlight up` supervises."""
