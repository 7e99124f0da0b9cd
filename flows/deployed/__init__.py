"""Everything Prefect's UI and REST can start: deployments, their forms, and the schedule of reproductions."""
