"""What several pages and the report read of a run: from the record, cached for pages."""
