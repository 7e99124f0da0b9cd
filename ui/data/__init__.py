"""What several pages and the report read of a run: from the database, cached for pages."""
