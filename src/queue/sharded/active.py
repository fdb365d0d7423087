"""The shards that have messages to claim. A process learns of them from the queue's bell and by reading its pointers;
all its consumers share that. While nothing is there one of the waiting threads listens for all of them, together with
all other waits of the process (P19).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from ...background import FailureLog
from ...coord.waits import SOON, Answer, Watch
from ...deadline import within_call
from ...errors import Corrupt, QueueOwned, Unavailable
from ...forks import reset_in_child
from ...logs import Log
from ...retry import Poll
from .bell import CHANGES, RUNG, changes_in, limits, rung_in
from .shards import Shards
from .slots import Claim, Slot

log = Log(__name__)

IDLE_LOOK = 9.0
"""Seconds between two looks at the pointers while the bell is silent: how late a message is noticed whose ring was
lost, or that another library has published."""
BUSY = 1.0
"""Seconds between glances while there is something to fire, so that a busy shard does not hide the others."""
AGAIN = 0.05
"""Seconds until a shard is tried again after other processes have claimed its messages first."""
GLANCES = Poll(low=0.01, high=0.07, factor=1.2, jitter=0.0)
"""Pauses between glances that find nothing: an idle queue costs a process 14 reads a second, and at most 3 for late
looks."""
FREE_GLANCES = Poll(low=0.002, high=0.004, factor=1.2, jitter=0.0)
"""As `GLANCES`, on a store that tells of writes without a read."""
LOOKING, LEFT_ALONE = 20, 0.05
"""Such a store tells of every write, also of one to another queue. So a thread pauses after each look that finds
nothing. Its pauses grow up to `LOOKING` times as long as the look took, and to `LEFT_ALONE` seconds at most. While
others write, a waiting thread then needs a twentieth of a core."""
LISTENS, LATE = 5.0, 0.5
"""Seconds for which one thread listens for all; after that another thread may replace it."""


class Heard(NamedTuple):
    """How many changes of settings the bell had told of, and when it was asked (seconds, monotonic)."""

    at: float
    changes: int


class ActiveShards:
    """The shards of a subqueue that are believed to hold unfired messages.

    A glance is one read of the bell; where it was rung since the last one, a look follows, one batch read of all
    pointers. A shard is dropped once a claim shows it drained, and comes back with the next look, or at once when this
    process publishes to it. However silent the bell is, there is a look each `idle_look` seconds.

    On a store that tells of writes without a read, each write counts as a ring, and there are no other looks.
    """

    def __init__(self, queue: Shards, idle_look: float = IDLE_LOOK) -> None:
        self._queue, self._idle_look = queue, idle_look
        self._seams = queue.store.seams
        self._turn = 0
        self._followers: WeakValueDictionary[int, ActiveShards] = WeakValueDictionary()
        self._failure_log = FailureLog(self._seams, log)
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Assume nothing about any shard. A forked child begins so, as a thread of its parent may have been looking."""
        self._lock = self._seams.lock()
        self._wake = self._seams.event()
        self.believed: dict[int, int] = {}
        """The shards that are believed to hold something, each with the number of `news` when it was learned of."""
        self.news = 0
        """How often something was learned."""
        self._returned: dict[Slot, str] = {}
        """The slots that were given back, as the last look has found them, each with the delivery that did it."""
        self._rings_seen: int | None = None
        self._version: object = None
        self._next_glance = self._next_look = self._next_listening = 0.0
        self._drained = self._awaited = self._listens = False
        self._in_vain = 0
        """Looks in a row that found nothing."""
        self._listens_until = 0.0
        self._calls = 0
        """How often the waiting threads were called."""
        self.heard = Heard(float("-inf"), 0)
        """What was heard last of changes of the settings."""
        self._rung: int | None = None
        """What the listening thread has read of the bell, until a thread reads the pointers."""
        self._listen_again()

    def candidates(self, only: Collection[int] | None = None, *, look: bool = False) -> list[int]:
        """Return shards to claim from, each call beginning at another one; glances first where it is time to.

        only: leave all others out.
        look: look at the pointers now. Raises `QueueOwned` where a stream owns shards and the others hold nothing.
        """
        with within_call(self._lock, self._queue.name):
            if look:
                self._look()
            elif (self._drained and not self.believed) or self._seams.monotonic() >= self._next_glance:
                self._glance()
            believed = tuple(self.believed)
            self._turn += 1
        shards = [shard for shard in believed if only is None or shard in only]
        start = self._turn % len(shards) if shards else 0
        return shards[start:] + shards[:start]

    def take_returned(self, most: int, only: Collection[int] | None) -> dict[Slot, str]:
        """Return up to `most` slots that were given back, which this process has not tried to take; no call.

        only: leave the slots of all other shards out.
        """
        if not self._returned:
            return {}
        with within_call(self._lock, self._queue.name):
            slots = sorted(slot for slot in self._returned if only is None or slot.shard in only)[:most]
            return {slot: self._returned.pop(slot) for slot in slots}

    def drained(self, shard: int, claim: Claim | None, news: int) -> None:
        """Drop a shard of which a claim left nothing, or (None) was refused.

        If no shard is left, glance at once, except after a refusal: then other processes were quicker, or this one may
        not claim for now, and no bell reports the end of that.

        news: the number of news when the claim was sent. What was learned since is kept, as the bell reports it only
            once.
        """
        with within_call(self._lock, self._queue.name):
            if self.believed.get(shard, news + 1) > news:
                return
            del self.believed[shard]
            if self.believed:
                return
            self._drained = claim is not None
            self._ear.begin_pauses()
            if claim is None:
                now = self._seams.monotonic()
                self._next_glance = min(self._next_glance, now + AGAIN)
                self._next_look = min(self._next_look, now + BUSY)

    def damaged(self, shard: int, damage: Corrupt, news: int) -> None:
        """Take note that the shard is damaged: it is not used until a look finds it repaired. It is logged."""
        self._failure_log.record(damage, f"shard {shard} of {self._queue.name} is left alone")
        self.drained(shard, None, news)

    def loaded(self, shards: Collection[int]) -> None:
        """Note that this process has just published to these shards; the groups that follow the queue note it too.

        If another thread looks for longer than the present call has time for, the bell reports it later.
        """
        try:
            with within_call(self._lock, self._queue.name):
                self._learn(shards)
                self._next_glance = min(self._next_glance, self._seams.monotonic() + BUSY)
                self.wake()
        except Unavailable:
            """The bell says it."""
        if self._followers:
            for one in self._followers.valuerefs():  # a list, made in one step: another thread may add one meanwhile
                follower = one()
                if follower is not None:
                    follower.loaded(shards)

    def follow(self, other: ActiveShards) -> None:
        """Note at once what this process publishes to the other's shards, which have the same numbers here."""
        other._followers[id(self)] = self

    def wake(self) -> None:
        """Let the threads that wait ask again now, even while a look hangs."""
        self._calls += 1
        if self._awaited:  # far cheaper to ask than to set
            self._awaited = False
            wake, self._wake = self._wake, self._seams.event()
            wake.set()
        if self._listens:
            self._ear.wake()

    def look_soon(self) -> None:
        """Look at the shards at the next call: claims that dropped shards may have been undone."""
        with self._lock:
            self._rings_seen, self._version, self._next_glance = None, None, 0.0

    def put_back(self) -> None:
        """Take note that what was claimed went to the tail again, where a look at once would find just that."""
        with self._lock:
            self._drained = False
            self._next_glance = self._next_listening = self._seams.monotonic() + BUSY

    def wait(self, timeout: float | None, *, least: float = 0.0, known: Collection[int] = ()) -> None:
        """Wait until it is worth asking again: after a local publish, at the next glance, or when `timeout` seconds are
        over.

        least: seconds for which it is not worth asking, unless something is published here, or to a shard that is not
            in `known`.
        """
        with within_call(self._lock, self._queue.name):
            # These three before anything is decided by what may change now: who changes it calls after that.
            wake, self._awaited, calls = self._wake, True, self._calls
            now = self._seams.monotonic()
            if known and not self.believed.keys() <= set(known):
                least = 0.0
            due = self._drained or now >= self._next_glance
            pause = AGAIN if self.believed else 0.0 if due else self._next_glance - now
            quiet = self._next_listening - now
            if self._listens and now > self._listens_until:
                self._listen_again()  # the thread that listened was interrupted, or hangs
            listens = not (self.believed or due or least or self._listens or quiet > 0)
            if listens:
                self._listens, self._listens_until = True, now + LISTENS + LATE
                self._tune_in()
            elif self._listens:
                pause = min(pause, self._listens_until - now + SOON)
            elif quiet > 0:
                pause = min(pause, quiet)
        if listens:
            self._listen(timeout, calls)
        else:
            pause = max(least or pause, 0.001)
            wake.wait(pause if timeout is None else min(pause, timeout))

    def _listen_again(self) -> None:
        self._listens = False
        bell = self._queue.bell
        self._ear = Watch(self._queue.store, bell.key, (RUNG, CHANGES), GLANCES, worth=self._is_news, lasting=True)

    def _tune_in(self) -> None:
        """Set how often the bell is listened to."""
        if not self._queue.bell.is_needed:
            self._ear.poll = FREE_GLANCES
            return
        least, _ = limits(self._queue.store, self._queue.name, self._queue.shards)
        self._ear.poll = replace(GLANCES, high=min(max(GLANCES.high, least), self._idle_look))

    def _listen(self, timeout: float | None, calls: int) -> None:
        """Wait until the bell is rung, until a thread has called since `calls`, or it is time to glance; as the one
        thread of all that wait. The others go on waiting, and are woken with this one.
        """
        ear = self._ear
        end = self._seams.monotonic() + (LISTENS if timeout is None else min(timeout, LISTENS))
        try:
            ear.wait(end, lambda: self._next_glance if self._calls == calls else 0.0)
            handed, ear.handed = ear.handed, None
            if isinstance(handed, Answer) and self._queue.bell.is_needed:
                self._rung = rung_in(handed.record)
            if handed is not None:  # where it is an error, the glance may meet it again, and raises it
                self._next_glance = 0.0
        finally:
            if self._ear is ear:
                self._listens = False
            self.wake()

    def _is_news(self, answer: Answer) -> bool:
        if not self._queue.bell.is_needed:
            return self._ear.known is None or self._ear.known[0] != self._version
        self.heard = Heard(answer.asked, changes_in(answer.record))
        return rung_in(answer.record) != self._rings_seen

    def _learn(self, shards: Iterable[int]) -> None:
        self.news += 1
        self.believed.update(dict.fromkeys(shards, self.news))

    def _glance(self) -> None:
        """Look at the shards if the bell was rung since the last glance, or the look is due."""
        now, store, bell = self._seams.monotonic(), self._queue.store, self._queue.bell
        _, factor = limits(store, self._queue.name, self._queue.shards)
        # Both before the pointers: what comes in between shows at the next glance.
        if bell.is_needed:
            rung, self._rung = self._rung, None
            heard = bell.rings() if rung is None else rung
            if heard != self._rings_seen or now >= self._next_look:
                self._look(factor)
            self._rings_seen = heard
        else:
            version = store.data_version()
            if version != self._version:
                self._look(factor)
                self._rest(now)
            self._version = version
            self._next_look = now + self._idle_look
        self._drained = False
        self._next_glance = now + BUSY if self.believed else self._next_look

    def _rest(self, began: float) -> None:
        """Let some time pass after looks that found nothing: a write of any kind may have caused them."""
        now, self._in_vain = self._seams.monotonic(), 0 if self.believed else self._in_vain + 1
        pause = min((now - began) * min(self._in_vain, LOOKING), LEFT_ALONE)
        self._next_listening = max(self._next_listening, now + pause)

    def _look(self, factor: float = 1.0) -> None:
        states = self._queue.states()
        for state in states:
            if state.damage is not None:
                self._failure_log.record(state.damage, f"shard {state.shard} of {self._queue.name} is left alone")
        self._queue.begin_firing(states)
        owned = [state for state in states if state.stream]
        self.believed = {}
        self._learn(state.shard for state in states if state.waiting and not state.stream)
        self._returned = {
            Slot(state.shard, pointer): by
            for state in states
            if state.returned and not state.stream
            for pointer, by in state.returned.items()
        }
        now = self._seams.monotonic()
        self._next_look, self._drained = now + self._idle_look * factor, False
        if self.believed:
            self._ear.begin_pauses()
        if self.believed or owned:
            self._next_glance = now + BUSY
        if owned:  # whose bell rings for another consumer
            self._next_listening = now + BUSY
        if owned and not self.believed:
            raise QueueOwned(
                f"{self._queue.name}: the stream {owned[0].stream!r} owns shard {owned[0].shard}; "
                "stop it and release the queue before consuming it (latchwork.spark.acknowledge or "
                "latchwork.spark.release)"
            )
