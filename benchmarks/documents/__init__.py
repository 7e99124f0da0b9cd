"""Documents, pictures and profiles written from kept results."""
