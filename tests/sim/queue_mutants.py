"""Rules taken out of the queues, one at a time, as `mutants.py` lists them: those of ordered consumers (P5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from latchwork.coord.lock import Grant
from latchwork.errors import LatchworkError
from latchwork.queue.sharded import shards
from latchwork.queue.sharded.consumer.ordering import ShardLocks
from latchwork.queue.sharded.pending import Aside
from latchwork.queue.sharded.shards import _IN_TURN as IN_TURN
from latchwork.queue.sharded.shards import PointerQueue
from latchwork.queue.sharded.subqueue import QueueView
from latchwork.store import NEVER
from latchwork.store.model.form import Form


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _released_at_the_end(self: Any, shard: int, grant: Any) -> None:
    with suppress(LatchworkError):
        if self._forget(shard, grant):
            grant.release()


def _claimed_anew(self: Any, *args: Any, real: Any = PointerQueue.claim, token: Any = None, **rest: Any) -> Any:
    return real(self, *args, **rest)


def _never_more(self: Any, shard: int, n: int, turn: Any = None, *, real: Any = PointerQueue.claim, **rest: Any) -> Any:
    return real(self, shard, n, turn and turn._replace(more=False), **rest)


def _not_in_order(self: Any, claimed: Any, *, in_order: bool, real: Any = QueueView._stamp) -> Any:
    return real(self, claimed, in_order=False)


def _always_given_back() -> Any:
    return mock.patch.object(Grant, "gives_back_late", property(lambda self: True, lambda *_: None), create=True)


UNSEALED = {more: Form(*form.ops, when=shards._UNFIRED, ttl=NEVER, once=form.once) for more, form in IN_TURN.items()}


ORDERED_RULES = (
    ("released while a message is on its way", "P5: a shard is given up with nothing unresolved",
     _swap(ShardLocks, "_end", _released_at_the_end)),
    ("a claim in doubt is forgotten", "P5: a claim in doubt is gone on with",
     _swap(Aside, "put_doubt", lambda self, *args: None)),
    ("a claim in doubt is made anew", "P5: with its own token", _swap(PointerQueue, "claim", _claimed_anew)),
    ("nothing is taken over", "P5: what the last holder had in hand comes first",
     _swap(QueueView, "take_over", lambda self, *args: None)),
    ("claims of a former holder count", "P5: sealed by the fence", _swap(shards, "_IN_TURN", UNSEALED)),
    ("only the newest claim is taken over", "P5: claimed together, in hand together",
     _swap(PointerQueue, "claim", _never_more)),
    ("given back by a late renewal", "P5: only who is done releases", _always_given_back, True),
    ("what is behind a message on its way is given out", "P5: nothing behind it",
     _swap(QueueView, "_stamp", _not_in_order), True),
)  # fmt: skip
