"""The outbox: durable here at once, in the queue later, exactly once."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .outbox import Outbox, OutboxLag, UnopenedQueue

__all__ = ["Outbox", "OutboxLag", "UnopenedQueue"]

__getattr__, __dir__ = offer(__name__, {".outbox": "Outbox OutboxLag UnopenedQueue"})
