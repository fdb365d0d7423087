"""Publishing exactly once: the names of `queue/sharded/ledger` that are used outside the queues."""

from .sharded.ledger.ledger import LEDGER_TTL, Ledger, Outgoing, Published

__all__ = ["LEDGER_TTL", "Ledger", "Outgoing", "Published"]
