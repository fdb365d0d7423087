"""Greenlets, virtual time, and nothing else: the hub that decides who runs next.

Everything that waits is an entry of one heap, ordered by virtual time and, among equals, by chance. Nobody runs
except from that heap, so the order of all events follows from the heap and from one seeded generator.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Raised in an actor whose process has died, at every point where it touches the world, for ever."""


class Wake:
    """One appointment of an actor; spent once it has been kept or cancelled."""

    __slots__ = ("actor", "spent")

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.spent = False


class Actor(greenlet):
    """One thread of a simulated process."""

    def __init__(self, hub: Hub, process: Any, body: Callable[[], None], name: str) -> None:
        super().__init__(self._live, hub.greenlet)
        self.process = process
        self.name = name
        self.body = body
        self.done = False
        self.main = False
        self.failure: BaseException | None = None
        self.wake: Wake | None = None
        self.joiners: list[Wake] = []
        self.hub = hub

    def _live(self) -> None:
        try:
            self.body()
        except Killed:
            pass
        except Exception as failure:
            self.failure = failure
            self.hub.failures.append((self.name, failure))
        self.finish()

    def finish(self) -> None:
        """It is over; whoever joined it goes on."""
        self.done = True
        self.hub.busy -= self.main
        for joiner in self.joiners:
            self.hub.wake(joiner)


class Hub:
    """Virtual time and the heap. `now` is true time in seconds since the run began.

    `busy` counts the main actors that are not done, and those that are still to come.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.greenlet = getcurrent()
        self.failures: list[tuple[str, BaseException]] = []
        self.steps = 0
        self.busy = 0
        self._heap: list[tuple[float, float, int, Any]] = []
        self._count = 0

    def push(self, when: float, what: Wake | Callable[[], None]) -> None:
        """Keep an appointment with an actor, or run an action, at that time."""
        self._count += 1
        heapq.heappush(self._heap, (when, self.rng.random(), self._count, what))

    def start(self, actor: Actor) -> None:
        """Let the actor begin, now or after whatever else happens now."""
        actor.wake = Wake(actor)
        self.push(self.now, actor.wake)

    def pause(self, seconds: float) -> None:
        """Called by an actor: go on after so much virtual time."""
        self.wait(self.appointment(), seconds)

    def appointment(self) -> Wake:
        """A new appointment of the actor that calls."""
        return Wake(getcurrent())

    def wait(self, wake: Wake, seconds: float | None) -> None:
        """Called by an actor: go on when `wake` is kept, at the latest after so many seconds."""
        actor = wake.actor
        if actor.process.dead:
            raise Killed
        actor.wake = wake
        if seconds is not None:
            self.push(self.now + (seconds if seconds > 0 else 0.0), wake)
        self.greenlet.switch()
        if actor.process.dead:
            raise Killed

    def wake(self, wake: Wake) -> None:
        """Let a waiting actor go on now."""
        if not wake.spent:
            self.push(self.now, wake)

    def run(self, until: float, done: Callable[[], bool] | None = None, max_steps: int = 200_000) -> bool:
        """Go on until nothing is left (True), `done` says so (True), or time or steps run out (False)."""
        heap = self._heap
        while heap:
            if done is not None and done():
                return True
            if heap[0][0] > until or self.steps >= max_steps:
                return False
            when, _, _, what = heapq.heappop(heap)
            self.now = max(when, self.now)
            self.steps += 1
            if what.__class__ is not Wake:
                what()
            elif not what.spent:
                self._resume(what)
        return done is None or done()

    def _resume(self, wake: Wake) -> None:
        actor = wake.actor
        frozen = actor.process.frozen_until
        if frozen > self.now and not actor.process.dead:
            self.push(frozen, wake)
            return
        wake.spent = True
        if not actor.done:
            actor.switch()

    def bury(self, actor: Actor) -> None:
        """Unwind an actor of a dead process; its finally-blocks run and can touch nothing."""
        if actor is getcurrent() or actor.done:
            return
        if actor.wake is not None:
            actor.wake.spent = True
        if not actor:
            actor.finish()
            return
        # parent = whoever calls, so that control comes back here
        actor.parent = getcurrent()
        actor.throw(Killed)
