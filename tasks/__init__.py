"""A thin Prefect task for each phase of a run, and commands' work outside runs."""
