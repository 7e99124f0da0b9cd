"""A recorded run that was done again, against the record."""
