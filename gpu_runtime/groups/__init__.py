"""Which devices share a sequence, and when their groups form anew."""
