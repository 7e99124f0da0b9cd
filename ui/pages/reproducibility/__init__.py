"""Whether reproductions of recorded runs came to the same result, and what differs if not."""
