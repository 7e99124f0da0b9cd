"""The dashboard's process: its server, its login, and the list of pages with their addresses."""
