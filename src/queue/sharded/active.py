"""Which shards have something to fire: one batch read, shared by every consumer of a process, and asked for rarely."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from weakref import WeakSet

from ...deadline import call_time
from ...errors import QueueOwned, Unavailable
from ...forks import renew_in_child
from ...retry import Poll
from .shards import Claim, PointerQueue

IDLE_LOOK = 9.0
"""Seconds between fruitless looks in the end: an idle queue costs a process one call in 9 s, whatever its consumers."""
BUSY = 1.0
"""Seconds between looks while there is something to fire, so that a busy shard does not hide the others."""


class ActiveShards:
    """The shards of a pointer queue that are believed to hold unfired messages.

    A look is one batch read of all pointers. A shard is dropped once a claim shows it drained, and comes back with the
    next look, or at once when this process publishes to it. While all looks are in vain the pauses between them grow to
    `idle_look` seconds.
    """

    def __init__(self, queue: PointerQueue, idle_look: float = IDLE_LOOK) -> None:
        self._queue, self._looks = queue, Poll(low=0.05, high=idle_look, factor=2.0, jitter=0.0)
        self._seams = queue.store.seams
        self._turn = 0
        self.followers: WeakSet[ActiveShards] = WeakSet()
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nothing is believed. A forked child begins so, as a thread of its parent may have been looking."""
        self._lock = self._seams.lock()
        self._wake = self._seams.event()
        self._active: dict[int, None] = {}
        self._fruitless = 0
        self._next_look = 0.0
        self._drained = False

    @property
    def believed(self) -> bool:
        """Whether any shard is believed to hold something. No I/O."""
        return bool(self._active)

    def candidates(self, only: Collection[int] | None = None, *, look: bool = False) -> list[int]:
        """Shards to claim from, each call beginning at another one; looks first where it is time to, or told to.

        only: leave all others out.  Raises `QueueOwned` where a stream owns shards and the others hold nothing.
        """
        with self._locked:
            if look or self._due():
                self._look()
            shards = self._wanted(only)
            self._turn += 1
        start = self._turn % len(shards) if shards else 0
        return shards[start:] + shards[:start]

    def claimed(self, shard: int, claim: Claim | None) -> None:
        """Take note of what a claim said: nothing there, or nothing left, drops the shard."""
        if claim is not None and claim.last < claim.loaded:
            return
        with self._locked:
            if shard in self._active:
                del self._active[shard]
                if not self._active:
                    self._emptied(refused=claim is None)

    def _emptied(self, *, refused: bool) -> None:
        """No shard is left: look at once, but not where the claim was refused, as a look may show the same again."""
        self._fruitless, self._drained = 0, not refused
        if refused:
            self._next_look = min(self._next_look, self._seams.monotonic() + self._looks.low)

    def loaded(self, shards: Collection[int]) -> None:
        """Take note that this process has just published to these shards; the groups that follow do as well."""
        with self._lock:
            self._active.update(dict.fromkeys(shards))
            self._next_look = min(self._next_look, self._seams.monotonic() + BUSY)
            if not self._wake.is_set():  # far cheaper to ask than to set
                self._wake.set()
        if self.followers:
            for follower in tuple(self.followers):
                follower.loaded(shards)

    def wake(self) -> None:
        """Let those that wait ask again now; not even a look that hangs keeps this waiting."""
        self._wake.set()

    def put_back(self) -> None:
        """Take note that what was claimed went to the tail again, where a look at once would find just that."""
        with self._lock:
            self._drained = False
            self._next_look = max(self._next_look, self._seams.monotonic() + BUSY)

    def wait(self, timeout: float | None, *, least: float = 0.0, known: Collection[int] = ()) -> None:
        """Wait until it is worth asking again: a local publish, the next look, or the end of `timeout` seconds.

        least: seconds for which it is not worth asking whatever is there, unless something is published here, or has
        been to another shard than those that are `known`.
        """
        with self._locked:
            pause = 0.0 if self._due() else self._next_look - self._seams.monotonic()
            self._wake.clear()
            if self._active:
                pause = self._looks.low
            if known and not self._active.keys() <= set(known):
                least = 0.0
        pause = max(pause, least, 0.001)
        self._wake.wait(pause if timeout is None else min(pause, timeout))

    @property
    def _locked(self) -> AbstractContextManager[object]:
        """The lock, which another thread may hold while it looks; the present verb waits for it as for a store call."""
        time = call_time()
        return self._lock if time is None else self._locked_within(time)

    @contextmanager
    def _locked_within(self, time: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=time):
            raise Unavailable(f"{self._queue.name}: another thread of this process waits for the store; try again")
        try:
            yield
        finally:
            self._lock.release()

    def _due(self) -> bool:
        """Whether it is time to look: by the clock, or as all shards that were known have been drained."""
        return (self._drained and not self._active) or self._seams.monotonic() >= self._next_look

    def _wanted(self, only: Collection[int] | None) -> list[int]:
        return [shard for shard in self._active if only is None or shard in only]

    def _look(self) -> None:
        states = self._queue.states()
        self._queue.begin_firing(states)
        owned = [state for state in states if state.stream]
        unfired = [state.shard for state in states if state.fired < state.loaded and not state.stream]
        self._active, self._drained = dict.fromkeys(unfired), False
        self._fruitless = 0 if self._active else self._fruitless + 1
        pause = self._looks.pause(self._fruitless, self._seams) if self._fruitless else BUSY
        self._next_look = self._seams.monotonic() + pause
        if owned and not self._active:
            raise QueueOwned(
                f"{self._queue.name}: the stream {owned[0].stream!r} owns shard {owned[0].shard}; "
                "stop it and let go of the queue before consuming it (latchwork.spark.acknowledge or "
                "latchwork.spark.release)"
            )
