"""What a fence is good for: writes that a resource refuses once it has seen a higher one (docs/protocols.md P2).

A holder, of a lock or of an office, may believe in its lease for as long as its own clock allows; but it may be paused
between the belief and the write. So the write itself carries the fence, and the resource remembers the highest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import FencedOut, LatchworkError, OutcomeUnknown, Refused
from ..inputs import checked_timeout
from ..seams import Seams
from ..store.model.expr import Bin, Bound, Expr, Guard, Param, missing
from ..store.model.ops import Op, Put
from ..store.once import Once
from ..store.port import KEEP, Exists, Key, RecordStore, Values


class Lost:
    """An event that is set the moment a lease can no longer be believed, and stays set.

    It compares the clock itself, so it needs no thread to be on time: a process that was stopped past its lease finds
    it set at its first look. The clock is the one that also counts suspended time.
    """

    def __init__(self, seams: Seams, until: float) -> None:
        self._seams, self._until = seams, until
        self._event = seams.event()

    def is_set(self) -> bool:
        """Whether the lease is over, was lost, or was given back."""
        if not self._event.is_set() and self._seams.boottime() >= self._until:
            self._event.set()
        return self._event.is_set()

    def set(self) -> None:
        """End it now."""
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if it is not after `timeout` seconds, at once for none or fewer.

        Raises `InvalidRequest` for what is no number of seconds.
        """
        timeout = checked_timeout(0 if isinstance(timeout, int | float) and timeout < 0 else timeout)
        end = None if timeout is None else self._seams.boottime() + timeout
        while not self.is_set():
            now = self._seams.boottime()
            if end is not None and now >= end:
                return False
            rest = self._until - now
            self._event.wait(max(0.0, rest if end is None else min(rest, end - now)))
        return True

    def extend(self, until: float) -> bool:
        """Believe for longer; False where it is set already: what was lost stays lost."""
        if self.is_set():
            return False
        self._until = max(self._until, until)
        return True


class Fenced:
    """Somebody who holds a fence. `lost` is set once it can no longer be believed."""

    _given_back = False

    def __init__(self, store: RecordStore, name: str, fence: int, lost: Lost) -> None:
        self._store, self._name, self._fence = store, name, fence
        self.lost = lost

    def check(self) -> None:
        """Raises `FencedOut` where the lease can no longer be believed.

        Advisory: it may end right after. What protects a resource is `operate`.
        """
        if self.lost.is_set():
            raise self._ended()

    def operate(
        self,
        key: Key,
        *ops: Op,
        bin: str = "fence",
        when: Guard | None = None,
        exists: Exists | None = None,
        or_absent: bool = False,
        ttl: int = KEEP,
        once: Once | None = None,
        repeatable: bool = False,
    ) -> Values:
        """Write to a resource under this fence: refused if its `bin` has seen a higher one, which it then remembers.

        One call, one record: the guard `bin <= fence` and `bin = fence` are part of the same atomic step. A record, or
        a bin, that is not there has seen no fence. Everything else is as for `RecordStore.operate`; `exists` is ANY by
        default, but UPDATE with a `when` of your own: the record must then be there, unless `or_absent=True`.

        Raises `NotFound` where it must and is not. Raises `FencedOut` if a higher fence was seen, or if this one is
        known to be lost already; nothing was written, unless its `details["doubt"]` is True: with `repeatable`, an
        earlier attempt that was not answered may have been applied. Raises `OutcomeUnknown` after such an attempt
        where, besides, the resource cannot be read any more.
        Not promised: that a holder who was succeeded is refused by a resource that its successor has not touched; the
        successor calls `seal` (or any `operate`) on it before its first read. After `OutcomeUnknown` the write may
        still land until the resource has seen a higher fence: before you write again what follows from what was read,
        acquire anew and `seal`.
        """
        self.check()
        expr, params = when if isinstance(when, Bound) else (when, {})
        guard = Bound(self._guard(bin, expr), {**params, "my-fence": self._fence})
        absent = or_absent or when is None
        if exists is None:
            exists = Exists.ANY if absent else Exists.UPDATE
        try:
            return self._store.operate(
                key,
                *ops,
                *self._ratchet(bin),
                when=guard,
                exists=exists,
                or_absent=absent,
                ttl=ttl,
                once=once,
                repeatable=repeatable,
            )
        except Refused as refusal:
            raise self._refusal(key, bin, refusal) from None

    def seal(self, key: Key, bin: str = "fence") -> None:
        """Raise a resource's bin to this fence, so that no earlier holder can write to it any more. Raises `FencedOut`.

        A new holder does this before its first read: what it reads then stays as it is until it writes itself.
        """
        self.operate(key, bin=bin, repeatable=True)

    # ---- how a resource remembers the highest fence: an integer in one bin

    def _guard(self, bin: str, when: Expr | None) -> Expr:
        """The guard "no higher fence than the parameter `my-fence` was seen", and the caller's own."""
        return _fenced(bin, when)

    def _ratchet(self, bin: str) -> tuple[Op, ...]:
        """The operations that remember this fence."""
        return (Put(bin, self._fence),)

    def _highest(self, value: Any) -> int | None:
        """The highest fence in what the bin holds; None where it holds none."""
        return value if isinstance(value, int) else None

    def _refusal(self, key: Key, bin: str, refusal: Refused) -> LatchworkError:
        """What a refusal comes to; it says "in doubt" where the store's refusal does."""
        doubt = bool(refusal.details.get("doubt"))
        try:
            record = self._store.get(key, bin)
        except LatchworkError as failure:
            return self._unread(key, failure) if doubt else refusal
        seen = self._highest(record.bins.get(bin)) if record else None
        if seen is None or seen <= self._fence:
            return refusal
        self._store.seams.note("fences_refused", by="resource")
        return FencedOut(
            f"{key} has seen the fence {seen} in bin {bin!r}, above {self._fence} of {self._name!r}: another holder "
            "has taken over; stop, and acquire again",
            key=key,
            seen=seen,
            fence=self._fence,
            doubt=doubt,
        )

    def _unread(self, key: Key, failure: LatchworkError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the write to {key} under the fence {self._fence} may have been applied: an attempt was not answered, a "
            f"later one was refused, and the record cannot be read ({failure.code}); read it before going on",
            key=key,
            fence=self._fence,
        )

    def _ended(self) -> FencedOut:
        if not self._given_back:  # else nobody was stopped: no lease was too short
            self._store.seams.note("fences_refused", by="holder")
        return FencedOut(
            f"the lease of {self._name!r} with fence {self._fence} has ended: it ran out, was taken over, or was given "
            "back; stop, and acquire again",
            fence=self._fence,
        )


@lru_cache(maxsize=1024)
def _fenced(bin: str, when: Expr | None) -> Expr:
    guard = missing(bin) | (Bin(bin) <= Param("my-fence"))
    return guard if when is None else guard & when
