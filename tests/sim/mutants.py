"""Rules taken out, one at a time: each mutant is a protocol without one of its guards.

A mutant is a context manager that patches the code for as long as it lasts. Whoever adds a rule adds its mutant here,
with a seed under which the checkers catch it: a checker that catches nothing proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from latchwork.store import once
from latchwork.store.expr import Const, MapHas, MapKeyAt, MapSize, Negate, Param, missing

TRUE = Const(True)


@dataclass(frozen=True)
class Mutant:
    """A rule that is taken out: which primitive, which rule, how, and a seed that shows it."""

    primitive: str
    name: str
    rule: str
    patch: Callable[[], Any]
    seed: int


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


# ---- the record store: once (P1)


def _blind_retry(bin: str, capacity: int, when: Any) -> Any:
    return TRUE if when is None else when


def _no_window(bin: str, capacity: int, when: Any) -> Any:
    fresh = missing(bin) | Negate(MapHas(bin, Param("token", str)))
    return fresh if when is None else fresh & when


def _window_only(bin: str, capacity: int, when: Any) -> Any:
    fresh = missing(bin) | (MapSize(bin) < capacity) | (MapKeyAt(bin, 0) < Param("token", str))
    return fresh if when is None else fresh & when


def _refused_without_cancelling(self: Any) -> Any:
    raise self._refused()


def _absent_means_done(self: Any) -> Any:
    return (None,)


@contextmanager
def _minted_below_the_retry() -> Iterator[None]:
    send = once._Attempt._send

    def fresh(self: Any) -> Any:
        def doubted() -> None:
            self.token = self.store.token_clock.mint(self.store.seams)

        attempt = self.store.policy.run
        del attempt
        self._doubted = doubted
        return _resending(self, send)

    with mock.patch.object(once._Attempt, "_send", fresh):
        yield


def _resending(self: Any, send: Any) -> Any:
    from latchwork.errors import OutcomeUnknown
    from latchwork.retry import RetryPolicy

    policy, store = self.store.policy, self.store
    self.store = store.with_policy(RetryPolicy(attempts=1))
    for _ in range(policy.attempts):
        try:
            return send(self)
        except OutcomeUnknown:
            self.token = store.token_clock.mint(store.seams)
    raise OutcomeUnknown


STORE = (
    Mutant("store", "retry of an in-doubt add", "P1: not has(t)", _swap(once, "_fresh", _blind_retry), 0),
    Mutant("store", "token checked, window not", "P1: smallest key < t", _swap(once, "_fresh", _no_window), 0),
    Mutant("store", "window checked, token not", "P1: not has(t)", _swap(once, "_fresh", _window_only), 0),
    Mutant("store", "token minted below the retry", "P1: minted above the retry", _minted_below_the_retry, 0),
    Mutant("store", "refused after doubt without cancelling", "P0.6",
           _swap(once._Attempt, "_cancel", _refused_without_cancelling), 0),
    Mutant("store", "absent after doubt means done", "P0.6", _swap(once._Attempt, "_cancel", _absent_means_done), 0),
)  # fmt: skip

MUTANTS = STORE
