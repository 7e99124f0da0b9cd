"""Seeds: how well drafts from stale weights rank them, and what the drafts are used for."""
