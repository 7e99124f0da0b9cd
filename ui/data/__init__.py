"""Data of a run for several pages and the report: from the record, cached for pages."""
