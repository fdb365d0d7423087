"""The processes of a machine, each with a store of its own, in which something may happen at any call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latchwork.coord import Barrier
from latchwork.errors import LatchworkError
from latchwork.retry import RetryPolicy
from latchwork.store import RecordStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

from .meetings import INTERRUPTED

STRUCK = ("dropped", "request_lost", "reply_lost", "duplicate", "slow")
"""Faults that one more attempt overcomes."""
CRASHED = "crashed"


class Client(FaultyStore):
    """The store of one process."""

    def __init__(self, inner: RecordStore) -> None:
        super().__init__(inner)
        self.policy = RetryPolicy(attempts=2, wait=0.01, max_wait=0.01)

    def data_version(self) -> None:
        """Every look is a read, so that both sides make as many calls."""


def strike(stores, place: int, fault) -> None:
    """Let a fault, or an action, happen at so many calls from now; of a tuple, one happens on each side."""
    for side, store in enumerate(stores):
        store.plan = {store._number + place: fault[side] if isinstance(fault, tuple) else fault}


def calm(stores) -> None:
    """Let nothing happen any more."""
    for store in stores:
        store.plan = {}


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
