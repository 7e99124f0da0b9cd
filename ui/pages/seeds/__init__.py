"""Seeds: how well drafts by stale weights rank them, and the use of the drafts."""
