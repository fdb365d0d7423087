"""Order within a key: one consumer at a time works a shard, under a fenced lock (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ....coord.lock import FencedLock, Grant
from ....errors import LatchworkError
from ....logs import Log
from ....seams import Event
from ..delivery import Delivery
from ..slots import ShardHolder
from ..subqueue import MAX_RECEIVE, NotGiven
from ..subscription import Subscription

log = Log(__name__)

LEASE = 10.0
"""Seconds after which a dead consumer's shard is taken over."""
TURN = 5.0
"""Seconds after which a shard is given up, so that few workers work all shards in turn."""
ASK = 1.0
"""Seconds after which a worker that holds no shard looks for one again, at the latest."""


@dataclass
class HeldShard:
    """A shard that this worker has for itself until its turn is over.

    end: release it now rather than at the end of the turn; harmless when repeated.
    leave: end the turn although this process has not finished the messages it claimed: the lock is left to run out, and
        the next holder is given these messages first.
    is_given_up: another thread gives its messages up, and then ends it.
    """

    shard: int
    grant: Grant
    until: float
    queue: Subscription
    end: Callable[[], None]
    leave: Callable[[], None]
    is_given_up: bool = False
    is_receiving: bool = False
    """Whether messages may be on their way to a run of this process."""

    @property
    def lost(self) -> bool:
        """Whether another process may have it by now."""
        return self.grant.lost.is_set()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Receive messages and put them into a run meanwhile. After an error some may be on their way still."""
        self.is_receiving = True
        yield
        self.is_receiving = False

    def receive(self, most: int, *, more: bool, timeout: float, not_given: NotGiven | None = None) -> list[Delivery]:
        """Return the next messages of the shard; `more`: beside some that are in hand and not handled yet."""
        end = self.queue.store.seams.monotonic() + timeout
        holder = ShardHolder(self.grant.fence, more)
        return self.queue.await_messages(most, end, {self.shard}, holder, not_given=not_given)

    def on_given_up(self, moved: bool) -> None:
        """Let others have it, where a run is given up. moved: nothing is left of its messages here.

        No worker here handles messages that are on their way, so the next holder must take them over.
        """
        self.end() if moved and not self.is_receiving else self.leave()

    def give_up(self) -> None:
        """Take nothing more of it: another thread gives its messages up."""
        self.is_given_up = True

    def mine(self) -> bool:
        """Whether the next message may be taken.

        Not beyond the turn, unless this process waits for a message that it has claimed: the next holder would handle
        later messages before it.
        """
        in_turn = self.queue.store.seams.monotonic() < self.until
        return not (self.lost or self.is_given_up) and (in_turn or self.awaits())

    def awaits(self) -> bool:
        """Whether a message of the shard is claimed, or perhaps, was not read yet, and will be asked for."""
        return self.queue.concurrency > 0 and self.queue.awaits({self.shard})


class ShardLocks:
    """The shards of a queue, to be held one by one by the workers of a consumer."""

    def __init__(self, queue: Subscription) -> None:
        self._queue, self._seams = queue, queue.store.seams
        self._guard = self._seams.lock()
        batching = queue.config.batching
        self._most = max(MAX_RECEIVE, batching.max_size if batching else 0)
        self._busy: dict[int, Grant | None] = {}
        self._locks: dict[int, FencedLock] = {}

    @contextmanager
    def hold_one(self, stopping: Event) -> Iterator[HeldShard | None]:
        """Yield a shard that has messages and no other worker; None, after a pause, if there is none."""
        self._queue.used = True
        # None while the queue is paused. If a claimed message is awaited, there may be no other to claim.
        shards: list[int] = []
        if self._queue.concurrency:
            shards = list(dict.fromkeys((*self._queue.pending.shards, *self._queue.active.candidates())))
        held = self._take_one(shards)
        if held is None:
            if not stopping.is_set():
                # If other consumers have all shards with messages, or the queue is paused, ask again later.
                self._queue.active.wait(ASK, least=ASK if shards or self._queue.concurrency == 0 else 0.0, known=shards)
            yield None
            return
        try:
            yield held
        except LatchworkError:
            held.end()
            raise
        except BaseException:  # any error: this worker may not have finished its claimed messages
            held.leave()
            raise
        if not held.is_given_up:
            held.end()

    def _take_one(self, shards: Sequence[int]) -> HeldShard | None:
        for shard in shards:
            with self._guard:
                if shard in self._busy:
                    continue
                self._busy[shard] = None  # reserved
            grant = None
            try:
                grant = self._acquired(shard)
            finally:
                with self._guard:
                    if grant is None:
                        del self._busy[shard]
                    else:
                        self._busy[shard] = grant
            if grant is not None:
                end, leave = partial(self._end, shard, grant), partial(self._leave, shard, grant)
                return HeldShard(shard, grant, self._seams.monotonic() + TURN, self._queue, end, leave)
        return None

    def _acquired(self, shard: int) -> Grant | None:
        """Return the lock of a shard. If it was broken, the messages that its last holder left come first (P5)."""
        grant = self._lock_of(shard).try_acquire()
        if grant is None:
            return None
        grant.gives_back_late = False
        try:
            grant.keep_alive()
            if grant.broken:
                self._queue.take_over(shard, grant.fence, self._most)
        except BaseException:
            grant.give_up()  # not released: the next holder must take over too
            raise
        return grant

    def _end(self, shard: int, grant: Grant) -> None:
        if self._queue.awaits({shard}):  # the next holder would handle later messages first
            self._leave(shard, grant)
        elif self._forget(shard, grant):
            try:
                grant.release()
            except LatchworkError as failure:
                log.warning("the lock of shard %d is left to its lease (%s): %s", shard, failure.code, failure)

    def _leave(self, shard: int, grant: Grant) -> None:
        grant.give_up()
        if self._forget(shard, grant):
            self._queue.pending.drop(shard)

    def _forget(self, shard: int, grant: Grant) -> bool:
        """Allow the shard to be taken again; False if its turn had ended before, as another grant may hold it
        by now.
        """
        with self._guard:
            mine = self._busy.get(shard) is grant
            if mine:
                del self._busy[shard]
            return mine

    def _lock_of(self, shard: int) -> FencedLock:
        """Return the cached handle of a lock: only one that has watched a dead consumer's lease may break it (P2)."""
        with self._guard:
            if shard not in self._locks:
                name = f"{self._queue.registry.client_id}/{self._queue.name}/{shard}"
                self._locks[shard] = FencedLock(self._queue.store, name, lease=LEASE)
            return self._locks[shard]
