"""The large circular queue over two stores, and against a list of everything that was ever enqueued."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.errors import AlreadyExists, InvalidRequest, LockUnavailable, NotFound, QueueFull
from latchwork.queue.circular.queue import LargeQueue

from .twins import Twins, came_to, failed

LEASE = 5.0
GROUPS, TXNS = ("g", "h"), ("t", "u", 7)
sizes = st.integers(1, 4)
offsets = st.integers(0, 12)
groups = st.sampled_from(GROUPS)
grouped = precondition(lambda machine: machine.groups)
txns = st.none() | st.sampled_from(TXNS)


class CircularQueues(Twins):
    """One queue, two handles on it, and two consumer groups; who holds the lock may die."""

    def start(self):
        self.values: list[int] = []
        self.head = 0
        self.transactions: dict = {}
        self.positions: dict[str, int] = {}
        self.holding: set[str] = set()
        self.groups: dict[str, tuple] = {}

    @initialize(capacity=st.integers(1, 5), slots=st.integers(1, 3), first=sizes, hold=st.none() | st.booleans())
    def make(self, capacity, slots, first, hold):
        self.capacity, self.locked = capacity, False
        made = self.both(
            lambda store: LargeQueue.create(store, "m", capacity, entries_per_record=slots, lease=LEASE), self.stores
        )
        self.queues = [made, self.both(lambda store: LargeQueue.open(store, "m"), self.stores)]

        if hold is not None:
            self.join(which=False, name="g", hold=hold)
        self.enqueue(which=False, n=min(first, capacity), txn="t", overwrite=False)

    @property
    def tail(self) -> int:
        return len(self.values)

    @property
    def waited_for(self) -> int:
        """Where head must stop."""
        return min([self.tail, *(self.positions[name] for name in self.holding)])

    def change(self, call, which):
        """What the call came to, or None where the lock of one who died was in the way."""
        answers = self.both(call, self.queues[which])
        return None if self.locked and came_to(answers) is LockUnavailable else answers

    # ---- changes

    @rule(which=st.booleans(), n=sizes, txn=txns, overwrite=st.booleans())
    def enqueue(self, which, n, txn, overwrite):
        values = list(range(self.tail, self.tail + n))

        def add(queue):
            return queue.enqueue_many(values, txn_id=txn, overwrite_if_full=overwrite, timeout=0)

        if n > self.capacity:
            assert came_to(self.both(add, self.queues[which])) is (InvalidRequest if overwrite else QueueFull)
            return
        answers = self.change(add, which)
        if answers is None:
            return
        self.locked = False
        head = max(self.head, self.tail + n - self.capacity) if overwrite else self.head
        if self.tail + n - head > self.capacity or (head > self.head and head > self.waited_for):
            assert came_to(answers) is QueueFull
            self.committed(txn, self.tail, 0)
            return
        assert came_to(answers) == range(self.tail, self.tail + n)
        self.committed(txn, self.tail, n)
        self.head = head
        self.values += values

    @rule(which=st.booleans(), n=sizes, txn=txns)
    def dequeue(self, which, n, txn):
        answers = self.change(lambda queue: queue.dequeue_many(n, txn_id=txn, timeout=0), which)
        if answers is None:
            return
        self.locked = False
        expected = list(range(self.head, max(self.head, min(self.head + n, self.waited_for))))
        assert [(entry.offset, entry.value) for entry in came_to(answers)] == [(at, at) for at in expected]
        self.committed(txn, self.head, len(expected))
        self.head += len(expected)

    @rule(which=st.booleans(), txn=st.sampled_from(TXNS))
    def ask_for_a_transaction(self, which, txn):
        answers = self.change(lambda queue: queue.transaction(txn, timeout=0), which)
        if answers is not None:
            found = came_to(answers)
            assert (found and found.offsets) == self.transactions.get(str(txn))

    def committed(self, txn, first, n):
        """A later use of an id that changed nothing counts too: what the queue tells is about the newest."""
        if txn is not None:
            self.transactions[str(txn)] = range(first, first + n) or None

    # ---- looking

    @rule(which=st.booleans(), offset=offsets)
    def look(self, which, offset):
        entry = came_to(self.both(lambda queue: queue.read_at(offset), self.queues[which]))
        assert (entry and entry.value) == (offset if self.head <= offset < self.tail else None)
        info = came_to(self.both(lambda queue: queue.info().head_offset, self.queues[which]))
        assert info == self.head
        assert came_to(self.both(lambda queue: queue.info().size, self.queues[which])) == self.tail - self.head
        self.queues[which] = self.both(lambda store: LargeQueue.open(store, "m"), self.stores)
        again = self.both(lambda store: LargeQueue.open_or_create(store, "m", 1000), self.stores)
        assert came_to(again) is AlreadyExists

    # ---- groups

    @rule(which=st.booleans(), name=groups, hold=st.booleans())
    def join(self, which, name, hold):
        self.groups[name] = self.both(lambda queue: queue.group(name, hold_head=hold), self.queues[which])
        if name not in self.positions:
            self.positions[name] = self.head
        self.holding |= {name} if hold else set()

    def of_group(self, name, call):
        """What the call came to; None where nobody has ever joined, as where the group was dropped."""
        if name not in self.groups:
            return None
        answers = self.both(call, self.groups[name])
        if name not in self.positions:
            assert came_to(answers) is NotFound or came_to(answers) is InvalidRequest
            return None
        return answers

    @grouped
    @rule(name=groups, n=sizes)
    def read(self, name, n):
        answers = self.of_group(name, lambda group: group.read(n))
        if answers is not None:
            start = max(self.positions[name], self.head)
            assert [entry.value for entry in came_to(answers)] == list(range(start, min(start + n, self.tail)))
            assert came_to(answers).gap == range(self.positions[name], start)

    @grouped
    @rule(name=groups, offset=offsets)
    def commit(self, name, offset):
        answers = self.of_group(name, lambda group: group.commit(offset))
        if answers is not None:
            assert came_to(answers) is (None if offset < self.tail else InvalidRequest)
            if offset < self.tail:
                self.positions[name] = max(self.positions[name], offset + 1)

    @grouped
    @rule(name=groups, offset=offsets)
    def rewind(self, name, offset):
        answers = self.of_group(name, lambda group: group.rewind(offset))
        if answers is not None:
            within = self.head <= offset <= self.tail
            assert came_to(answers) is (None if within else InvalidRequest)
            self.positions[name] = offset if within else self.positions[name]

    @grouped
    @rule(name=groups, drop=st.booleans())
    def lag_or_drop(self, name, drop):
        answers = self.of_group(name, lambda group: group.lag())
        if answers is not None:
            assert came_to(answers) == self.tail - max(self.positions[name], self.head)
        if drop and name in self.groups:
            assert not failed(self.both(lambda group: group.drop(), self.groups[name]))
            self.positions.pop(name, None)
            self.holding.discard(name)

    # ---- who dies

    @precondition(lambda self: self.movable and not self.locked)
    @rule(which=st.booleans())
    def die_with_the_lock(self, which):
        taken = self.both(lambda queue: queue._lock.take(queue._store.seams.unique(), [], 0).fence, self.queues[which])
        assert self.locked or not failed(taken)
        self.locked = True

    @precondition(lambda self: self.movable and self.locked)
    @rule(which=st.booleans())
    def succeed_who_died(self, which):
        for _ in range(2):
            self.dequeue(which, 1, None)
            for clock in self.clocks:
                clock.advance(LEASE + 0.1)
        self.dequeue(which, 1, None)
        assert not self.locked


def test_circular_queues_are_alike_over_both_stores_and_as_a_list(agree):
    agree(CircularQueues, "circular queues")
