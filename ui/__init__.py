"""The dashboard and the report of a run: what is recorded, as pages, charts and sentences."""
