"""Whether drafts by stale weights rank the seeds correctly, and where the drafts went."""
