"""Documents, pictures and profiles that are written from kept results."""
