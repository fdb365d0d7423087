"""Rules taken out of the primitives that several hold at a time (docs/protocols.md P10), as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from latchwork.coord import contender, holders, lease, semaphore
from latchwork.store.model.expr import SERVER_NOW, Bin, Const, If, exists
from latchwork.store.model.form import Form
from latchwork.store.model.ops import MapPut, Put

TRUE = Const(True)
Rule = tuple[Any, ...]


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _slots(name: str, value: Any) -> Callable[[], Any]:
    """With another part in the acquisition of slots."""

    @contextmanager
    def patch() -> Iterator[None]:
        semaphore._taken.cache_clear()
        with mock.patch.object(semaphore, name, value):
            yield
        semaphore._taken.cache_clear()

    return patch


_RENEW_ANY = MapPut(holders.RENEWED, holders.ID, SERVER_NOW)


def _form(name: str, *ops: Any, **changes: Any) -> Callable[[], Any]:
    """With other parts in a form of the holders."""
    old = getattr(holders, name)
    kept = {part: getattr(old, part) for part in ("when", "exists", "or_absent", "ttl")}
    return _swap(holders, name, Form(*ops, **{**kept, **changes}))


def _lasts_a_moment(self: Any, key: Any, seconds: float, now: float) -> bool:
    return key in self._seen and now - self._seen[key][1] > 0.3


def _believed_anew(self: Any, fence: int) -> Any:
    return contender.Claim(fence, self._seams.boottime() + self._party.lease)


HELD_RULES: tuple[Rule, ...] = (
    ("a holder is removed though it has renewed", "P10.4: guarded by the stamp that was seen",
     _swap(holders, "_STILL", holders._HELD), True),
    ("removed by the challenger's lease", "P10.4: the holder's whole lease",
     _swap(lease.Standstill, "lasts", _lasts_a_moment)),
    ("renewing needs no id", "P10.3: renew guarded by the id",
     _form("_RENEW", _RENEW_ANY, when=exists(holders.RENEWED))),
    ("giving back needs no id", "P10.3: release guarded by the id",
     _swap(holders, "_HELD", exists(holders.HOLDERS))),
    ("belief without end", "P10.4: start of the first attempt + lease - drift",
     _swap(lease, "believed_until", lambda began, lease: began + 1e9)),
)  # fmt: skip
SEMAPHORE_RULES: tuple[Rule, ...] = (
    *HELD_RULES,
    ("slots are taken out of others' hands", "P10.1: each slot is in nobody's hands",
     _slots("lacks", lambda bin, key: TRUE)),
    ("more are let in than there are", "P10.1: size + n <= permits", _slots("_ROOM", TRUE)),
    ("one id goes with several choices of slots", "P10.2: an id goes with its slots",
     _swap(semaphore._Taking, "_begin_again", lambda self: None)),
    ("the next fence is one more", "P10.1: max(fencing-ctr + 1, server time)",
     _slots("NEXT_FENCE", If(exists(lease.FENCE), Bin(lease.FENCE) + 1, Const(1)))),
    ("a guard without the ratchet", "P10.7: guards fences[slot] <= f and stores it",
     _swap(semaphore.Permits, "_ratchet", lambda self, bin: (Put("another", self._fence),))),
    ("a ratchet without the guard", "P10.7: guards fences[slot] <= f and stores it",
     _swap(semaphore, "_fenced", lambda bin, slots, when: TRUE if when is None else when)),
    ("what was found counts without being renewed", "P10.2: counts only once it is renewed",
     _swap(contender.Attempts, "_confirm", _believed_anew)),
)  # fmt: skip
