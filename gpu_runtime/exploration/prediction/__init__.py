"""What further drafts may score, and what they are expected to gain."""
