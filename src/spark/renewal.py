"""The record of a queue in use, kept alive: the registries of Spark's processes are gone before they renew anything."""

from __future__ import annotations

import logging

from ..errors import LatchworkError, Refused
from ..queue.records import lifetime
from ..queue.registry import REFRESH
from ..queue.sharded import ShardedQueue
from ..store import Param, Touch
from ..store.expr import SINCE_UPDATE, Bound

log = logging.getLogger(__name__)

_DUE = Param("age") < SINCE_UPDATE
"""Asked by the server: no process of Spark's lives long enough to remember it."""


def renew(queue: ShardedQueue) -> None:
    """Let the queue's record live on from now, if nobody has written to it for 5 minutes. One call.

    A record of a short life is renewed after a quarter of it. A failure is logged, and tried again by the next caller.
    """
    life = lifetime(queue.config)
    guard = Bound(_DUE, {"age": round(min(REFRESH, life / 4) * 1000)})
    records = queue.registry.records
    try:
        records.store.operate(records.key(queue.name), Touch(), when=guard, ttl=life, repeatable=True)
    except Refused:
        return
    except LatchworkError as failure:
        log.warning("the record of the queue %s could not be renewed: %s", queue.name, failure)
