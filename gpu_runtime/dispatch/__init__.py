"""One loop that hands leases to devices, for rollouts, evaluations and drafts alike."""
