"""Upkeep of the sharded queue: the shovel and the sweeper."""
