"""The local paged queue against a list: pages that fill, cursors, moments to read from, pages that are given back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from latchwork.errors import InvalidRequest, NotFound
from latchwork.queue import PagedQueue
from latchwork.testing.clock import ManualClock
from tests.queue.paged.recording import RecordingFiles

from .twins import MACHINES, run

NAMES = ("c", "d")
sizes = st.sampled_from((0, 1, 9, 30, 70, 200))
names = st.sampled_from(NAMES)


@dataclass
class Position:
    """A cursor, and the places in the list of all messages that it has read and committed up to."""

    cursor: object
    read: int
    committed: int


class PagedQueues(RuleBasedStateMachine):
    """One queue with small pages, and the list of all that was ever appended to it.

    Which page a message is on is the queue's own affair: how many of the oldest it has given back is read from it, and
    must be none that is young or that a cursor has not passed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.files = ManualClock(), RecordingFiles()
        self.sent: list[tuple[float, bytes]] = []
        self.first = 0
        self.positions: dict[str, Position] = {}
        self.dropped: list = []

    @initialize(
        page_size=st.sampled_from((64, 128, 256)), force_every=st.integers(0, 3),
        lifetime=st.sampled_from((None, 5.0, 60.0)), first=st.lists(sizes, max_size=6), name=st.none() | names,
    )  # fmt: skip
    def open_first(self, *, page_size, force_every, lifetime, first, name):
        self.options = {"page_size": page_size, "force_every": force_every, "lifetime": lifetime}
        self.open()
        if name is not None:
            self.make_a_cursor(name)
        self.append_many(first)

    def open(self) -> None:
        self.queue = PagedQueue.open(Path("/d"), "q", files=self.files, seams=self.clock, **self.options)

    @rule(seconds=st.sampled_from((0.0001, 0.5, 4.0, 30.0, 100.0)))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from((-7.0, 7.0)))
    def set_the_clock(self, seconds):
        self.clock.step(seconds)

    # ---- writing

    def message(self, size: int) -> bytes:
        """The next message, unlike all others; its arrival is never before that of the one before it."""
        data = b"%d:" % len(self.sent) + bytes(size)
        arrival = max(int(self.clock.wall() * 1000) / 1000, self.sent[-1][0] if self.sent else 0.0)
        self.sent.append((arrival, data))
        return data

    @rule(size=sizes)
    def append(self, size):
        self.queue.append(self.message(size))
        self.learn()

    @rule(many=st.lists(sizes, max_size=5))
    def append_many(self, many):
        self.queue.append_many([self.message(size) for size in many])
        self.learn()

    @rule()
    def force(self):
        self.queue.force()

    @rule(old=st.booleans())
    def reclaim(self, old):
        if old:
            self.clock.advance((self.options["lifetime"] or 0.0) + 1.0)
        self.queue.reclaim()
        self.learn()

    def learn(self) -> None:
        """How many of the oldest messages are gone, which may be so where they are old and every cursor has passed."""
        there = next((int(entry.data.split(b":")[0]) for entry in self.queue.read()), len(self.sent))
        assert there >= self.first
        lifetime = self.options["lifetime"]
        if there > self.first:
            assert lifetime is not None
            assert all(arrival < self.clock.wall() - lifetime for arrival, _ in self.sent[self.first : there])
            assert all(position.committed >= there for position in self.positions.values())
        self.first = there

    # ---- closing, and what survives it

    @rule()
    def reopen(self):
        self.queue.close()
        for call in (lambda: self.queue.append(b""), lambda: self.queue.cursor("c")):
            with pytest.raises(InvalidRequest):
                call()
        self.open_again()

    @rule()
    def die_and_reopen(self):
        """The process ends without a word; what it has written is in the system's cache."""
        self.files = self.files.killed()
        self.open_again()

    def open_again(self) -> None:
        self.open()
        for name, position in self.positions.items():
            position.cursor, position.read = self.queue.cursor(name), position.committed
        self.dropped.clear()

    # ---- reading

    @rule(back=st.sampled_from((0.0, 0.001, 3.0, 50.0, 1000.0)))
    def read_since(self, back):
        moment = self.clock.wall() - back
        since = int(round(moment * 1000, 3)) / 1000
        expected = [one for one in self.sent[self.first :] if one[0] >= since]
        assert [(entry.timestamp, entry.data) for entry in self.queue.read(moment)] == expected

    @rule(name=names)
    def make_a_cursor(self, name):
        cursor = self.queue.cursor(name)
        known = self.positions.setdefault(name, Position(cursor, self.first, self.first))
        assert cursor is known.cursor

    @precondition(lambda self: self.positions)
    @rule(name=names, n=st.integers(1, 4))
    def read(self, name, n):
        if position := self.positions.get(name):
            expected = self.sent[position.read :][:n]
            assert [(entry.timestamp, entry.data) for entry in position.cursor.read(n)] == expected
            position.read += len(expected)

    @precondition(lambda self: self.positions)
    @rule(name=names)
    def commit(self, name):
        if position := self.positions.get(name):
            position.cursor.commit()
            position.committed = position.read

    @precondition(lambda self: self.positions)
    @rule(name=names)
    def rewind(self, name):
        if position := self.positions.get(name):
            position.cursor.rewind()
            position.read = position.committed

    @precondition(lambda self: self.positions)
    @rule(name=names)
    def drop(self, name):
        if position := self.positions.pop(name, None):
            position.cursor.drop()
            self.dropped.append(position.cursor)

    @precondition(lambda self: self.dropped)
    @rule()
    def use_what_was_dropped(self):
        with pytest.raises(NotFound):
            self.dropped[-1].drop()

    # ---- what always holds

    @invariant()
    def all_that_is_left_is_there_in_order(self):
        if hasattr(self, "queue"):
            found = [(entry.timestamp, entry.data) for entry in self.queue.read()]
            assert found == self.sent[self.first :]

    @invariant()
    def cursors_know_what_is_behind(self):
        for position in self.positions.values():
            behind = position.cursor.backlog()
            left = self.sent[position.committed :]
            assert behind.messages >= len(left)
            assert (behind.bytes > 0) >= bool(left)
            if self.first == 0:  # else it may see the rest of a message whose beginning was given back
                assert behind.oldest == (left[0][0] if left else None)

    def teardown(self):
        if hasattr(self, "queue"):
            self.queue.close()


def test_paged_queues_are_like_a_list(proved):
    ran = run(PagedQueues, MACHINES)
    proved("state machines", "paged queues and a list", machines=ran)
