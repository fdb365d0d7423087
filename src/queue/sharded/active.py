"""Which shards have something to fire: known by glances at the queue's bell and looks at its pointers, which all
consumers of a process share.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from weakref import WeakSet

from ...background import Troubles
from ...deadline import call_time
from ...errors import Corrupt, QueueOwned, Unavailable
from ...forks import renew_in_child
from ...retry import Poll
from .bell import listeners_of
from .shards import Claim, PointerQueue

log = logging.getLogger(__name__)

IDLE_LOOK = 9.0
"""Seconds between two looks at the pointers while the bell is silent: how late a message is noticed whose ring was
lost, or that another library has published."""
BUSY = 1.0
"""Seconds between glances while there is something to fire, so that a busy shard does not hide the others."""
AGAIN = 0.05
"""Seconds until a shard is asked again that others were quicker at."""
GLANCES = Poll(low=0.01, high=0.1, factor=1.2, jitter=0.0)
"""Pauses between glances in vain: an idle queue costs a process 10 reads a second, and 4 for its late looks."""
FREE_GLANCES = Poll(low=0.002, high=0.01, factor=1.2, jitter=0.0)
"""The same where the store knows without a read that nobody has written."""


class ActiveShards:
    """The shards of a pointer queue that are believed to hold unfired messages.

    A glance is one read of the bell; where it was rung since the last one, a look follows, one batch read of all
    pointers. A shard is dropped once a claim shows it drained, and comes back with the next look, or at once when this
    process publishes to it. However silent the bell is, there is a look each `idle_look` seconds.
    """

    def __init__(self, queue: PointerQueue, idle_look: float = IDLE_LOOK) -> None:
        self._queue, self._idle_look = queue, idle_look
        self._seams = queue.store.seams
        self._listeners = listeners_of(queue.store)
        self._turn = 0
        self.followers: WeakSet[ActiveShards] = WeakSet()
        self._troubles = Troubles(self._seams, log)
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nothing is believed. A forked child begins so, as a thread of its parent may have been looking."""
        self._lock = self._seams.lock()
        self._wake = self._seams.event()
        self._active: dict[int, int] = {}
        self.news = 0
        """How often something was learned; `_active` has for each shard when it was learned of."""
        self._heard: int | None = None
        self._version: object = None
        self._fruitless = 0
        self._next_glance = self._next_look = 0.0
        self._drained = False

    @property
    def believed(self) -> bool:
        """Whether any shard is believed to hold something. No I/O."""
        return bool(self._active)

    def candidates(self, only: Collection[int] | None = None, *, look: bool = False) -> list[int]:
        """Shards to claim from, each call beginning at another one; glances first where it is time to.

        only: leave all others out.  look: look at the pointers now.  Raises `QueueOwned` where a stream owns shards and
        the others hold nothing.
        """
        with self._locked:
            if look:
                self._look()
            elif self._due():
                self._glance()
            shards = self._wanted(only)
            self._turn += 1
        start = self._turn % len(shards) if shards else 0
        return shards[start:] + shards[:start]

    def claimed(self, shard: int, claim: Claim | None, news: int) -> None:
        """Take note of what a claim said: nothing there, or nothing left, drops the shard.

        news: as it was when the claim was sent. What was learned since stays, as the bell says it once.
        """
        if claim is not None and claim.last < claim.loaded:
            return
        with self._locked:
            if self._active.get(shard, news + 1) <= news:
                del self._active[shard]
                if not self._active:
                    self._emptied(refused=claim is None)

    def damaged(self, shard: int, damage: Corrupt, news: int) -> None:
        """Take note that the shard is damaged: it is left alone until a look finds it mended. It is logged."""
        self._troubles.tell(damage, f"shard {shard} of {self._queue.name} is left alone")
        self.claimed(shard, None, news)

    def _emptied(self, *, refused: bool) -> None:
        """No shard is left: glance at once, but not where the claim was refused: others were quicker, or may not claim
        either for now, which no bell says the end of.
        """
        self._fruitless, self._drained = 0, not refused
        if refused:
            now = self._seams.monotonic()
            self._next_glance, self._next_look = min(self._next_glance, now + AGAIN), min(self._next_look, now + BUSY)

    def loaded(self, shards: Collection[int]) -> None:
        """Take note that this process has just published to these shards; the groups that follow do as well.

        Where another thread looks for longer than the present verb has time for, the bell tells of it later.
        """
        with suppress(Unavailable), self._locked:
            self._learn(shards)
            self._next_glance = min(self._next_glance, self._seams.monotonic() + BUSY)
            if not self._wake.is_set():  # far cheaper to ask than to set
                self._wake.set()
        if self.followers:
            for follower in tuple(self.followers):
                follower.loaded(shards)

    def wake(self) -> None:
        """Let those that wait ask again now; not even a look that hangs keeps this waiting."""
        self._wake.set()

    def look_soon(self) -> None:
        """Believe nothing longer than to the next call: claims that dropped shards may have been undone."""
        with self._lock:
            self._heard, self._version, self._next_glance = None, None, 0.0

    def put_back(self) -> None:
        """Take note that what was claimed went to the tail again, where a look at once would find just that."""
        with self._lock:
            self._drained = False
            self._next_glance = max(self._next_glance, self._seams.monotonic() + BUSY)

    def wait(self, timeout: float | None, *, least: float = 0.0, known: Collection[int] = ()) -> None:
        """Wait until it is worth asking again: a local publish, the next glance, or the end of `timeout` seconds.

        least: seconds for which it is not worth asking whatever is there, unless something is published here, or has
        been to another shard than those that are `known`.
        """
        with self._locked:
            pause = 0.0 if self._due() else self._next_glance - self._seams.monotonic()
            self._wake.clear()
            if self._active:
                pause = AGAIN
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
        """Whether it is time to glance: by the clock, or as all shards that were known have been drained."""
        return (self._drained and not self._active) or self._seams.monotonic() >= self._next_glance

    def _wanted(self, only: Collection[int] | None) -> list[int]:
        return [shard for shard in self._active if only is None or shard in only]

    def _learn(self, shards: Iterable[int]) -> None:
        self.news += 1
        self._active.update(dict.fromkeys(shards, self.news))

    def _glance(self) -> None:
        """Look where the bell was rung since the last glance, or a look is due all the same."""
        now, store = self._seams.monotonic(), self._queue.store
        least, factor = self._listeners.listen(self._queue.name, self._queue.shards)
        # Before the bell, as the bell is read before the pointers: what comes in between shows at the next glance.
        version = store.data_version()
        if version is None or version != self._version or self._heard is None:
            heard = self._queue.bell.rings()
            if heard != self._heard or now >= self._next_look:
                self._look(factor)
            self._heard, self._version = heard, version
        self._drained = False
        self._fruitless = 0 if self._active else self._fruitless + 1
        self._next_glance = now + (BUSY if self._active else self._pause(version, least))

    def _pause(self, version: object, least: float) -> float:
        if version is not None:
            return FREE_GLANCES.pause(self._fruitless, self._seams)
        high = min(max(GLANCES.high, least), self._idle_look)
        return replace(GLANCES, high=high).pause(self._fruitless, self._seams)

    def _look(self, factor: float = 1.0) -> None:
        states = self._queue.states()
        for state in states:
            if state.damage is not None:
                self._troubles.tell(state.damage, f"shard {state.shard} of {self._queue.name} is left alone")
        self._queue.begin_firing(states)
        owned = [state for state in states if state.stream]
        self._active = {}
        self._learn(state.shard for state in states if state.fired < state.loaded and not state.stream)
        now = self._seams.monotonic()
        self._next_look, self._drained = now + self._idle_look * factor, False
        if self._active or owned:
            self._fruitless, self._next_glance = 0, now + BUSY
        if owned and not self._active:
            raise QueueOwned(
                f"{self._queue.name}: the stream {owned[0].stream!r} owns shard {owned[0].shard}; "
                "stop it and let go of the queue before consuming it (latchwork.spark.acknowledge or "
                "latchwork.spark.release)"
            )
