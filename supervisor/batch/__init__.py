"""`corral batch`: many jobs from one file, each a tree of processes of its own, and a ledger that lasts."""
