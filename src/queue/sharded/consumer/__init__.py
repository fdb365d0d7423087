"""Consumers of the sharded queue: threads that receive, handle and acknowledge."""
