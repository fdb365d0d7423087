"""Order within a key: one consumer at a time works a shard, under a fenced lock (docs/protocols P5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ....coord.lock import FencedLock, Grant
from ....errors import LatchworkError
from ....seams import Event
from ..delivery import Delivery
from ..queue import ShardedQueue
from ..shards import Turn
from ..subqueue import MAX_RECEIVE

log = logging.getLogger(__name__)

LEASE = 10.0
"""Seconds after which a dead consumer's shard is taken over."""
TURN = 5.0
"""Seconds after which a shard is given up, so that others are worked too where there are few workers."""
ASK = 1.0
"""Seconds at the most for which a worker that holds no shard waits before it looks for one again."""


@dataclass
class HeldShard:
    """A shard that this worker has to itself, until its turn is over.

    end: lets others have it, now rather than at the end of the turn; harmless when repeated.  leave: the same where
    this process is not done with what it has claimed: the lock is left to its lease, and whoever breaks it is given
    that first.  is_given_up: somebody else gives its messages up, and ends it then.
    """

    shard: int
    grant: Grant
    until: float
    queue: ShardedQueue
    end: Callable[[], None]
    leave: Callable[[], None]
    is_given_up: bool = False

    @property
    def lost(self) -> bool:
        """Whether somebody else may have it by now."""
        return self.grant.lost.is_set()

    def receive(self, most: int, *, more: bool, timeout: float) -> list[Delivery]:
        """The next messages of the shard; `more`: beside some that are in hand and not handled yet."""
        return self.queue.await_messages(most, timeout, {self.shard}, Turn(self.grant.fence, more))

    def given_up(self, moved: bool) -> None:
        """Let others have it, where a run is given up. moved: nothing is left of its messages, as in the sideline."""
        self.end() if moved else self.leave()

    def mine(self) -> bool:
        """Whether the next message may be taken.

        Not beyond the turn, unless this process waits for a message that it has claimed: whoever is next would handle
        later ones before it.
        """
        in_turn = self.queue.store.seams.monotonic() < self.until
        return not (self.lost or self.is_given_up) and (in_turn or self.awaits())

    def awaits(self) -> bool:
        """Whether a message of the shard is claimed, or perhaps, was not read yet, and will be asked for."""
        return self.queue.concurrency > 0 and self.queue.awaits({self.shard})


class ShardLocks:
    """The shards of a queue, to be held one by one by the workers of a consumer."""

    def __init__(self, queue: ShardedQueue) -> None:
        self._queue, self._seams = queue, queue.store.seams
        self._guard = self._seams.lock()
        batching = queue.config.batching
        self._most = max(MAX_RECEIVE, batching.max_size if batching else 0)
        self._busy: dict[int, Grant | None] = {}
        self._locks: dict[int, FencedLock] = {}

    @contextmanager
    def hold_one(self, stopping: Event) -> Iterator[HeldShard | None]:
        """A shard that has messages and that nobody else works; None, after a pause, where there is none."""
        self._queue.used = True
        shards = self._candidates()
        held = self._take_one(shards)
        if held is None:
            if not stopping.is_set():
                # Where others have what there is, or the queue is paused, it is not worth asking soon.
                self._queue.active.wait(ASK, least=ASK if shards or self._queue.concurrency == 0 else 0.0, known=shards)
            yield None
            return
        try:
            yield held
        except LatchworkError:
            held.end()
            raise
        except BaseException:  # whatever it was, this worker may not be done with what it has claimed
            held.leave()
            raise
        if not held.is_given_up:
            held.end()

    def _candidates(self) -> list[int]:
        """Shards that may have something for this process: none while the queue is paused."""
        if self._queue.concurrency == 0:
            return []
        # Where a claimed message is awaited there may be nothing else to claim.
        return list(dict.fromkeys((*self._queue.aside.shards, *self._queue.active.candidates())))

    def _take_one(self, shards: Sequence[int]) -> HeldShard | None:
        for shard in shards:
            if not self._reserve(shard):
                continue
            grant = None
            try:
                grant = self._acquired(shard)
            finally:
                self._settle(shard, grant)
            if grant is not None:
                end, leave = partial(self._end, shard, grant), partial(self._leave, shard, grant)
                return HeldShard(shard, grant, self._seams.monotonic() + TURN, self._queue, end, leave)
        return None

    def _acquired(self, shard: int) -> Grant | None:
        """The lock; where it was broken, whoever had it may have left something, which comes first (P5)."""
        grant = self._lock_of(shard).try_acquire()
        if grant is None:
            return None
        grant.gives_back_late = False
        try:
            grant.keep_alive()
            if grant.broken:
                self._queue.take_over(shard, grant.fence, self._most)
        except BaseException:
            grant.give_up()  # not released: the next one must take over, too
            raise
        return grant

    def _end(self, shard: int, grant: Grant) -> None:
        if self._queue.awaits({shard}):  # whoever is next would handle what is behind that
            self._leave(shard, grant)
        elif self._forget(shard, grant):
            try:
                grant.release()
            except LatchworkError as failure:
                log.warning("the lock of shard %d is left to its lease (%s): %s", shard, failure.code, failure)

    def _leave(self, shard: int, grant: Grant) -> None:
        grant.give_up()
        if self._forget(shard, grant):
            self._queue.aside.drop(shard)

    def _forget(self, shard: int, grant: Grant) -> bool:
        """The shard may be taken again; False where it ended before, and may be under another grant by now."""
        with self._guard:
            mine = self._busy.get(shard) is grant
            if mine:
                del self._busy[shard]
            return mine

    def _reserve(self, shard: int) -> bool:
        with self._guard:
            if shard in self._busy:
                return False
            self._busy[shard] = None
            return True

    def _settle(self, shard: int, grant: Grant | None) -> None:
        """End the reservation: keep the shard if the lock was acquired."""
        with self._guard:
            if grant is None:
                del self._busy[shard]
            else:
                self._busy[shard] = grant

    def _lock_of(self, shard: int) -> FencedLock:
        """Return the cached handle of a lock: only one that has watched a dead consumer's lease may break it (P2)."""
        with self._guard:
            if shard not in self._locks:
                name = f"{self._queue.registry.client_id}/{self._queue.name}/{shard}"
                self._locks[shard] = FencedLock(self._queue.store, name, lease=LEASE)
            return self._locks[shard]
