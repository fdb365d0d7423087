"""Latches: wait until so many things have happened, here or in several data centres ("farms").

Every count is exactly-once: by its party (a Spark partition, a job) where one is named, else by a token, so that a
lost reply never counts twice (docs/protocols.md P1, P8).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import AlreadyExists
from ...inputs import checked_whole
from ...retry import LATCH_POLICY, RetryPolicy
from ...store.port import RecordStore
from . import layout
from .base import Latch, LatchLevel
from .layout import By
from .watch import LatchProgress

__all__ = ["CountDownLatch", "CountUpDownLatch", "LatchLevel", "LatchProgress"]


class CountDownLatch(Latch):
    """A latch that only counts down. For the Java library's records too, which it reads and writes as they are."""

    @classmethod
    def create(
        cls,
        store: RecordStore,
        client_id: str,
        latch_id: str,
        count: int | None = None,
        *,
        parties: Iterable[str | int] | None = None,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 3600,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> CountDownLatch:
        """Create this farm's counter with `count`, or with one for each of `parties` (whom `missing()` then knows).

        farms: at XDC level, the farms that must bring their counter before the latch can be released; default: those
        that have one, which is safe only where one coordinator brings the whole count. At DC level they are refused, as
        only this farm's counter decides there. ttl: seconds; a latch that expires raises, it is never released by that.
        set_suffix: the latch is kept in the set `D_LTCH#<set_suffix>`; every handle on it has the same. policy: how
        often, and for how long, a call is tried again.

        Raises `AlreadyExists` where this farm's counter is there; `OutcomeUnknown` where it may have been created by
        this call; `InvalidRequest` before any I/O.
        """
        latch = cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy,
            farms=farms,
        )  # fmt: skip
        count = latch._expect(count, parties)
        capacity = min(max(count, layout.MIN_TOKENS), layout.MAX_TOKENS)
        if not latch._create(count, capacity):
            raise _already(latch)
        return latch


class CountUpDownLatch(Latch):
    """A latch that also counts up, while work is still being found."""

    @classmethod
    def create(
        cls,
        store: RecordStore,
        client_id: str,
        latch_id: str,
        count: int | None = None,
        *,
        parties: Iterable[str | int] | None = None,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 3600,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> CountUpDownLatch:
        """Create this farm's counter, with 0 where neither count nor parties is given. All else, and what it raises, as
        `CountDownLatch.create`.
        """
        latch = cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy,
            farms=farms,
        )  # fmt: skip
        if not latch._begin(count, parties):
            raise _already(latch)
        return latch

    @classmethod
    def get_or_create(
        cls,
        store: RecordStore,
        client_id: str,
        latch_id: str,
        count: int | None = None,
        *,
        parties: Iterable[str | int] | None = None,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 3600,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> CountUpDownLatch:
        """The same, but where this farm's counter is there it is left as it is."""
        latch = cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy,
            farms=farms,
        )  # fmt: skip
        latch._begin(count, parties)
        return latch

    def _begin(self, count: int | None, parties: Iterable[str | int] | None) -> bool:
        """Create this farm's counter; False where it is there already."""
        if count is None and parties is None:
            count = 0
        return self._create(self._expect(count, parties), layout.MAX_TOKENS)

    def count_up(self, n: int = 1) -> int:
        """Count up by `n`, exactly once; what remains in this farm. One store call. Raises as `count_down`.

        Not promised: across data centres whose stores are shipped to one another, a count-up in flight can come too
        late to hold the latch.
        """
        return self._count(By.ADDING, checked_whole("n", n, 1, layout.MAX_COUNT))


def _already(latch: Latch) -> AlreadyExists:
    return AlreadyExists(
        f"{latch!r} exists already; use .get() to join it, .delete() it first, or create one under another id"
    )
