"""Batches that end, over two stores: published into, handled, failed, discarded, closed; the model is a set of each.

A batch is done once it is closed and each of its messages was acknowledged or discarded. What follows comes once, at
once where an acknowledgement or the close is the last that was waited for, else when the leader looks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import force_setattr

from latchwork.background import FailureLog
from latchwork.errors import Cancelled, Refused, WaitTimeout
from latchwork.logs import Log
from latchwork.queue import Outcome, Publish, QueueConfig, QueueRegistry
from latchwork.queue.sharded.upkeep.ending import Ending
from tests.queue.sharded.delayed.test_delayed import Term

from .twins import Twins, came_to

CLIENT = f"b{os.getpid()}"
NAMES = ("one", "two")
KEYS = ("k", "l")
names, picks = st.sampled_from(NAMES), st.integers(0, 5)


@dataclass
class Model:
    """One batch: its messages by id, those that are done or discarded, and whether it is closed and has ended."""

    messages: dict[str, None] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    closed: bool = False
    ended: bool = False
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        return self.closed and self.messages.keys() == self.done | self.gone

    def results(self, aside, held):
        """What comes of each message, in the order in which they were published; and the end."""
        for one in self.messages:
            if one in self.done:
                yield one, "done", None, one
            elif one in self.gone:
                yield one, "gone", "CANCELLED", None
            elif one in aside:
                yield one, "retrying", "HANDLER_FAILED", None
            else:
                yield one, "running" if one in held else "ready", "WAIT_TIMEOUT", None
        yield "all" if self.closed else "open"


@dataclass
class InHand:
    """A delivery on both sides, and of which batch."""

    twins: tuple
    message_id: str
    batch: str


class Own:
    """What a leader knows of."""

    def __init__(self, queue) -> None:
        self.queue = queue

    def queues(self):
        return [self.queue]

    def failure_log(self):
        return FailureLog(self.queue.store.seams, Log(__name__))


def told(batch):
    """What the results of a batch are by now, and whether these are all."""
    found = []
    try:
        for one in batch.results(0):
            code = one.error.code if one.error else None
            found.append((one.message_id, one.state.value, code, one.value))
    except WaitTimeout:
        return [*found, "open"]
    return [*found, "all"]


def acknowledge(queue, some):
    """Acknowledge these, each with its id as its result."""
    for one in some:
        force_setattr(one, "answer", [f'"{one.message_id}"'])
    queue.ack_many(some)


class Batches(Twins):
    """Two batches of one queue; what follows on a batch has its name as its payload."""

    def start(self):
        self.models = {name: Model() for name in NAMES}
        self.hands: list[InHand] = []
        self.aside: dict[str, str] = {}
        self.followed: list[str] = []
        self.batch_of: dict[str, str] = {}
        self.key_of: dict[str, str] = {}

    @initialize(shards=st.integers(1, 2))
    def make(self, shards):
        config = QueueConfig("q", results=3_600, retry=False, shards=shards, max_deliveries=1_000)
        self.queues = self.both(lambda store: QueueRegistry(store, CLIENT, farm_id="f").create(config), self.stores)
        self.batches = {
            name: self.both(lambda queue, name=name: queue.batch(name, then=Publish(f"after {name}")), self.queues)
            for name in NAMES
        }

    @rule(name=names, n=st.integers(1, 3))
    def publish(self, name, n):
        answers = self.both(lambda batch: batch.publish_many([name] * n), self.batches[name])
        if self.models[name].closed:
            assert came_to(answers) is Refused
            return
        for message_id in answers[0]:
            self.models[name].messages[message_id] = None
            self.batch_of[message_id] = name

    @rule(name=names, key=st.sampled_from(KEYS))
    def publish_by_key(self, name, key):
        """Again and again; a key that is of the other batch counts there."""
        answers = self.both(lambda batch: batch.publish(name, dedup=key), self.batches[name])
        if self.models[name].closed:
            assert came_to(answers) is Refused
            return
        (message_id,) = {answers[0]}
        assert self.key_of.setdefault(key, message_id) == message_id
        if message_id not in self.batch_of:
            self.batch_of[message_id] = name
            self.models[name].messages[message_id] = None

    @rule(aside=st.booleans(), n=st.integers(1, 4))
    def receive(self, aside, n):
        answers = self.both(lambda queue: (queue.sideline if aside else queue).receive(n), self.queues)
        for twins in zip(*answers, strict=True):
            payload, message_id = twins[0].payload, twins[0].message_id
            if payload.startswith("after "):
                name = payload.removeprefix("after ")
                assert self.models[name].ended, "nothing follows before all is done"
                assert not self.models[name].cancelled, "nothing follows on a cancelled batch"
                assert name not in self.followed, "what follows comes once"
                self.followed.append(name)
                self.both(lambda one: one.ack(), twins)
            else:
                self.aside.pop(message_id, None)
                cancelled = self.models[self.batch_of[message_id]].cancelled
                assert not cancelled, "nothing of a cancelled batch is handed out"
                self.hands.append(InHand(twins, message_id, self.batch_of[message_id]))

    @precondition(lambda self: self.hands)
    @rule(pick=picks)
    def acknowledge(self, pick):
        held = self.hands.pop(-1 - pick % len(self.hands))
        assert came_to(self.both(lambda one: one.ack(one.message_id), held.twins)) is None
        self.is_done([held])

    @precondition(lambda self: self.hands)
    @rule()
    def acknowledge_all(self):
        every, self.hands = self.hands, []
        twins = tuple([held.twins[side] for held in every] for side in range(2))
        assert came_to(self.both(acknowledge, self.queues, twins)) is None
        self.is_done(every)

    def is_done(self, some):
        for held in some:
            self.models[held.batch].done.add(held.message_id)
        for name in {held.batch for held in some}:
            self.models[name].ended |= self.models[name].complete

    @precondition(lambda self: self.hands)
    @rule(pick=picks)
    def fail(self, pick):
        held = self.hands.pop(-1 - pick % len(self.hands))
        assert came_to(self.both(lambda one: one.nack(), held.twins)) is None
        if not self.models[held.batch].cancelled:
            self.aside[held.message_id] = held.batch

    @precondition(lambda self: self.aside)
    @rule(pick=picks)
    def discard(self, pick):
        message_id = sorted(self.aside)[pick % len(self.aside)]
        answers = self.both(lambda queue: queue.sideline.discard([message_id]), self.queues)
        assert answers[0] == {message_id: Outcome.DONE}
        self.models[self.aside.pop(message_id)].gone.add(message_id)

    @precondition(lambda self: self.aside)
    @rule(pick=picks)
    def bring_back(self, pick):
        message_id = sorted(self.aside)[pick % len(self.aside)]
        answers = self.both(lambda queue: queue.sideline.redrive([message_id]), self.queues)
        assert answers[0] == {message_id: Outcome.DONE}
        del self.aside[message_id]

    @rule(name=names)
    def close(self, name):
        assert came_to(self.both(lambda batch: batch.close(), self.batches[name])) is None
        model = self.models[name]
        model.closed = True
        model.ended |= model.complete

    @rule(name=names)
    def cancel(self, name):
        model = self.models[name]
        outcome = came_to(self.both(lambda batch: batch.cancel(), self.batches[name]))
        assert bool(outcome) == (model.cancelled or not model.ended)
        if outcome:
            model.cancelled = model.closed = model.ended = True
            self.aside = {one: batch for one, batch in self.aside.items() if batch != name}

    @rule()
    def lead(self):
        self.both(lambda queue: Ending(Own(queue)).run(Term()), self.queues)
        for model in self.models.values():
            model.ended |= model.complete

    @rule(name=names)
    def look(self, name):
        (progress, _), model = self.both(lambda batch: batch.progress(), self.batches[name]), self.models[name]
        assert progress.cancelled is model.cancelled
        if model.cancelled:
            assert came_to(self.both(lambda batch: batch.wait(0), self.batches[name])) is Cancelled
            return
        assert (progress.published, progress.done, progress.discarded, progress.waiting, progress.parked) == (
            len(model.messages), len(model.done), len(model.gone),
            len(model.messages.keys() - model.done - model.gone), 0,
        )  # fmt: skip
        assert (progress.closed, progress.complete, progress.ended) == (model.closed, model.complete, model.ended)
        assert self.both(lambda batch: batch.wait(0), self.batches[name])[0] is model.complete

    @rule(name=names)
    def read_the_results(self, name):
        found, model = self.both(told, self.batches[name])[0], self.models[name]
        if not model.cancelled:
            assert found == list(model.results(self.aside, {one.message_id for one in self.hands}))

    @rule()
    def list_those_that_have_not_ended(self):
        open_ = [name for name in sorted(NAMES) if not self.models[name].ended]
        assert self.both(lambda queue: [one.name for one in queue.list_batches()], self.queues)[0] == open_

    def teardown(self):
        """In the end everything is handled, and what follows has come for each batch, once; by a leader if need be."""
        if "queues" in self.__dict__:
            for name in NAMES:
                self.close(name)
            self.acknowledge_all()
            for _ in range(2):
                for aside in (True, False):
                    self.receive(aside, 100)
                    self.acknowledge_all()
            self.receive(False, 100)
            follow = [name for name in sorted(NAMES) if not self.models[name].cancelled]
            assert set(self.followed) == {name for name in follow if self.models[name].ended}
            self.lead()
            self.receive(False, 100)
            assert sorted(self.followed) == follow
        super().teardown()


def test_batches_look_alike_over_both_stores_and_as_a_plain_set_says(agree):
    agree(Batches, "batches")
