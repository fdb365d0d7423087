"""The commands of a sharded queue."""
