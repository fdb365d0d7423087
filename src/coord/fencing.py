"""Fenced writes: a resource refuses a write whose fence is lower than one it has seen (docs/protocols P2).

The holder of a lock, or a leader, can check its lease by its own clock, but it may be paused between the check and the
write. So the write itself carries the fence, and the resource remembers the highest one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import FencedOut, LatchworkError, OutcomeUnknown, Refused
from ..forks import reset_in_child
from ..inputs import checked_switch, checked_timeout
from ..seams import Seams
from ..store.decode import damaged
from ..store.model.expr import Bin, Bound, Expr, Guard, Param, missing, unbound
from ..store.model.ops import Op, Put
from ..store.model.record import check_guard
from ..store.model.values import checked_bin
from ..store.port import KEEP, Exists, Key, Once, RecordStore, Values
from ..unpicklable import Unpicklable

LOOK_AGAIN = 1.0
"""Seconds after which a wait reads the clock again: the pause itself does not count suspended time."""


class Lost:
    """An event that is set as soon as a lease can no longer be relied on, and stays set.

    It reads the clock itself, so it needs no thread: a process that was stopped for longer than its lease finds it set
    at the first check. The clock also counts suspended time.
    """

    def __init__(self, seams: Seams, until: float) -> None:
        self._seams, self._until = seams, until
        self._event = seams.event()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the event in a forked child: a thread of the parent may be setting it."""
        was_set, self._event = self._event.is_set(), self._seams.event()
        if was_set:
            self._event.set()

    def is_set(self) -> bool:
        """Whether the lease has run out, was lost, or was released."""
        if not self._event.is_set() and self._seams.boottime() >= self._until:
            self._event.set()
        return self._event.is_set()

    def set(self) -> None:
        """Set the event now."""
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set. False if it is not set after `timeout` seconds (None = no limit).

        If the lease runs out while the machine is suspended, this returns within a second after that.
        With a timeout of 0 or less it returns at once. Raises `InvalidRequest` if `timeout` is not a number, and for a
        wait in the thread of a running asyncio loop.
        """
        timeout = checked_timeout(0 if isinstance(timeout, int | float) and timeout < 0 else timeout)
        self._seams.may_wait("Lost.wait", timeout)
        return self.waited(timeout, LOOK_AGAIN)

    def waited(self, timeout: float | None, look: float) -> bool:
        """Wait as `wait` does, and read the clock again each `look` seconds. For this package."""
        end = None if timeout is None else self._seams.boottime() + timeout
        while not self.is_set():
            now = self._seams.boottime()
            if end is not None and now >= end:
                return False
            pause = min(self._until - now, look)
            self._event.wait(max(0.0, pause if end is None else min(pause, end - now)))
        return True

    def extend(self, until: float) -> bool:
        """Extend the lease to `until`. False if the event is set already: a lost lease stays lost."""
        if self.is_set():
            return False
        self._until = max(self._until, until)
        return True


class Fenced(Unpicklable):
    """The holder of a fence. `lost` is set when its lease can no longer be relied on."""

    _INSTEAD = "pickle the handle that it came from, and acquire there"

    _given_back = False

    def __init__(self, store: RecordStore, name: str, fence: int, lost: Lost) -> None:
        self._store, self._name, self._fence = store, name, fence
        self.lost = lost

    def check(self) -> None:
        """Raise `FencedOut` if the lease can no longer be relied on. No I/O.

        Advisory: the lease may end right after. What protects a resource is `operate`.
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
        """Write to a resource under this fence. Refused if the resource has seen a higher fence in its `bin`.

        One call, one record: the guard `bin <= fence` and the write `bin = fence` are one atomic step with `ops`. A
        record or a bin that does not exist has seen no fence. All other parameters are as in `RecordStore.operate`;
        `exists` is ANY by default, but UPDATE if you pass `when`: the record must then exist, unless `or_absent=True`.

        Errors:
        `NotFound` if the record must exist and does not.
        `FencedOut` if the resource has seen a higher fence, or if this one is known to be lost. Nothing was written,
            unless its `details["doubt"]` is True: with `repeatable` or `once`, an earlier attempt without an answer may
            have been applied.
        `OutcomeUnknown` if there was such an attempt and the resource cannot be read afterwards.

        Not promised: that a resource refuses an old holder before the new holder has written to it; so a new holder
        calls `seal` (or any `operate`) before its first read. After `OutcomeUnknown` the write may still arrive until
        the resource has seen a higher fence: before you write again based on what you have read, acquire the lock again
        and `seal`.
        """
        self.check()
        checked_switch("or_absent", or_absent)
        check_guard(when)
        expr, params = unbound(when)
        guard = Bound(self._guard(checked_bin(bin), expr), {**params, "my-fence": self._fence})
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

        A new holder calls this before its first read: no other changes the resource between that read and its own
        writes.
        """
        self.operate(key, bin=bin, repeatable=True)

    # ---- how a resource remembers the highest fence: an integer in one bin

    def _guard(self, bin: str, when: Expr | None) -> Expr:
        """Return the guard "no fence higher than the parameter `my-fence` was seen", and the caller's own guard."""
        return _fenced(bin, when)

    def _ratchet(self, bin: str) -> tuple[Op, ...]:
        """Return the operations that store this fence in the resource."""
        return (Put(bin, self._fence),)

    def _highest(self, value: Any) -> int | None:
        """Return the highest fence in the bin's value; None if there is none."""
        return value if isinstance(value, int) else None

    def _has_fences(self, value: Any) -> bool:
        """Whether the value in the bin is one that the ratchet writes; another one is damaged."""
        return type(value) is int

    def _refusal(self, key: Key, bin: str, refusal: Refused) -> LatchworkError:
        """Return the error for a refusal by the store; it keeps the doubt of that refusal."""
        doubt = bool(refusal.details.get("doubt"))
        try:
            record = self._store.get(key, bin)
        except LatchworkError as failure:
            return self._unread(key, failure) if doubt else refusal
        kept = record.bins.get(bin) if record else None
        seen = self._highest(kept)
        if kept is not None and not self._has_fences(kept):
            return damaged(key, f"bin {bin!r} holds a {type(kept).__name__}, which is not a fence")
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
        if not self._given_back:  # a lease that was released is no refusal worth counting
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
