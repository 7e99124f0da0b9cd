"""A run's report: the dashboard's charts in one HTML file that needs neither server nor network."""
