"""Documents, pictures, curves and profiles that are written from kept results."""
