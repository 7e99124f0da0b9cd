"""The report of a run: the dashboard's charts in one HTML file that needs neither server nor network."""
