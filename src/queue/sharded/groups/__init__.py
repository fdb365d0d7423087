"""Groups: several independent subscriptions to one sharded queue (docs/protocols P17)."""
