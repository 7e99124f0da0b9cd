"""Each phase of a run as a thin Prefect task, and what commands do beside runs."""
