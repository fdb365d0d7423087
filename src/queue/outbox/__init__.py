"""The outbox: durable here at once, in the queue later, exactly once."""

from .outbox import Outbox, OutboxLag, UnopenedQueue

__all__ = ["Outbox", "OutboxLag", "UnopenedQueue"]
