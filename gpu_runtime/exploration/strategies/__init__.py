"""The exploration strategies, one file each: when to draft, what to keep and what to train on."""
