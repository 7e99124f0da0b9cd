"""Access to the servers that a person opens: the check before each of them, and the dashboard's login."""
