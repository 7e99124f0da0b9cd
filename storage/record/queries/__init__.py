"""What the dashboard and the command line ask of the record."""
