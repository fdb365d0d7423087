"""Consumers of the sharded queue: threads that receive, handle and acknowledge."""

from .consumer import Consumer

__all__ = ["Consumer"]
