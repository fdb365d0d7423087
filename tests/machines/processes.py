"""The processes of a machine, each with a store of its own, in which something may happen at any call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latchwork.coord import Barrier
from latchwork.errors import LatchworkError, LeaseLost
from latchwork.queue import QueueRegistry
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.retry import RetryPolicy
from latchwork.store import RecordStore
from latchwork.store.model.ops import writes
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, Fault, FaultyStore

from .meetings import INTERRUPTED

STRUCK = ("dropped", "request_lost", "reply_lost", "duplicate", "slow")
"""Faults that one more attempt overcomes."""
CRASHED, LOST = "crashed", "lost"


class Client(FaultyStore):
    """The store of one process."""

    def __init__(self, inner: RecordStore) -> None:
        super().__init__(inner)
        self.policy = RetryPolicy(attempts=2, wait=0.01, max_wait=0.01)
        self.at_write: tuple[str, Any] | None = None
        """What is to happen at the next write of a record, with the name of its key."""

    def data_version(self) -> None:
        """Every look is a read, so that both sides make as many calls."""

    def _fault(self, number: int, verb: str, request: Any) -> Fault | None:
        if self.at_write and verb == "operate" and request.key.name == self.at_write[0] and writes(request.ops):
            self.plan[number] = self.at_write[1]
            self.at_write = None
        return super()._fault(number, verb, request)


def strike(stores, place: int | str, fault) -> None:
    """Let a fault, or an action, happen at so many calls from now, or at the next write of the record of that name.

    fault: of a tuple, one happens on each side.
    """
    for side, store in enumerate(stores):
        happens = fault[side] if isinstance(fault, tuple) else fault
        if isinstance(place, str):
            store.at_write = place, happens
        else:
            store.plan = {store._number + place: happens}


def calm(stores) -> None:
    """Let nothing happen any more."""
    for store in stores:
        store.plan, store.at_write = {}, None


# ---- parties of a barrier


class Interrupted(BaseException):
    """The program that waits is interrupted."""


def interrupt() -> None:
    raise Interrupted


@dataclass(eq=False)
class Party:
    """One process of a party of a barrier, on both sides."""

    name: str
    stores: tuple[Client, Client]
    barriers: tuple[Barrier, Barrier]


class Clock(ManualClock):
    """A clock with the waits that it is moved by, the innermost last."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[object] = []


def wait_for_all(
    barrier: Barrier, clock: Clock, name: str, payload: str, *, seconds: float, interrupted: bool, alive: Any
):
    """Wait; return what it comes to, `INTERRUPTED` or `CRASHED`."""
    wait = object()

    def stop() -> None:
        if wait not in clock.waits:
            return
        if clock.waits[-1] is wait:
            raise Interrupted
        clock.at(0.01, stop)  # another one is in the middle of this wait

    if interrupted:
        clock.at(seconds, stop)
    clock.waits.append(wait)
    try:
        return barrier.wait(name.rpartition("/")[2], payload, None if interrupted else seconds, alive=alive)
    except Interrupted:
        return INTERRUPTED
    except Crash:
        return CRASHED
    except LatchworkError as failure:
        return failure
    finally:
        clock.waits.remove(wait)


# ---- leaders who publish schedules


class Term:
    """A leadership that lasts until it is lost."""

    lost = False

    def check(self) -> None:
        """Raise an error if it is over."""
        if self.lost:
            raise LeaseLost("another one leads")


@dataclass(eq=False)
class Worker:
    """A process on both sides that may do the upkeep: its store, its registry, its term and its duty."""

    stores: tuple[Client, Client]
    registries: tuple[QueueRegistry, QueueRegistry]
    terms: tuple[Term, Term]
    duties: tuple[Scheduling, Scheduling]


class Own:
    """One registry, for the duty."""

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry = registry

    def registries(self) -> list[QueueRegistry]:
        return [self._registry]


def lead(duty: Scheduling, term: Term) -> Any:
    """One pass; the pause after it, or what ended it."""
    try:
        return duty.run(term)
    except Crash:
        return CRASHED
    except LeaseLost:
        return LOST
