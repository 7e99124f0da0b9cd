"""The strategies of exploration, a file each: when drafts are made, what is kept and what is trained on."""
