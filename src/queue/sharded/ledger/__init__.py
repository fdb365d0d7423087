"""The ledger: publishing exactly once, and once for each deduplication key."""
