"""Rules taken out of the status and the cancel of one message (P26), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from latchwork.queue.sharded import places, shards, status, transfer
from latchwork.queue.sharded.delayed import entries
from latchwork.store import Bin, Param, Put, exists


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


@contextmanager
def _both(name: str, value: Any, *owners: Any) -> Any:
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _named_each_time(self: Any, slots: Any, *, real: Any = transfer._Loading._named) -> Any:
    for place in self.names:
        one = self.envelopes[place]
        self.envelopes[place] = transfer.replace(one, msg_id=one.msg_id[:20])
    self.renamed = False
    return real(self, slots)


def _not_noted(self: Any, message_id: str, me: str, *, make: bool, real: Any = places.Places.marking) -> Any:
    update = real(self, message_id, me, make=make)
    return replace(update, ops=(Put("noted", 1), *update.ops[1:]))


_IS_IT = exists("data") & Bin("msgId", str).eq(Param("id", str))

MESSAGE_RULES = (
    ("an id for each slot", "P26.1: an id names its first slot, and stays",
     _swap(transfer._Loading, "_named", _named_each_time)),
    ("a message that moves leaves no trace", "P26.2: created together with its trace",
     lambda: _both("_noted", lambda *_, **__: {}, shards.Shards, entries.DelayedMessages)),
    ("what is not there is done", "P26.3: the trace is read after the empty slot", _swap(status, "LOOKS", 1)),
    ("who moves it does not ask", "P26.4: who moves it reads cancelled",
     lambda: _both("cancelled_in", lambda rows: [], shards, entries)),
    ("a cancel is not noted", "P26.4: who cancels puts cancelled", _swap(places.Places, "marking", _not_noted)),
    ("what somebody has is dropped", "P26.5: a drop asks for no delivery", _swap(places, "_WAITS", _IS_IT)),
)  # fmt: skip
