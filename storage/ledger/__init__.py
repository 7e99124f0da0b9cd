"""The ledger: where paid device time went, and whether all of it is accounted for."""
