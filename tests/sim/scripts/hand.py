"""What a process had in hand that was killed beside its siblings (P5.33 to P5.35), as another one settles it."""

from __future__ import annotations

import mmap
from unittest import mock

from latchwork.queue import Consumer
from latchwork.queue.sharded.config import QueueConfig
from latchwork.queue.sharded.consumer import in_hand
from latchwork.queue.sharded.consumer.in_hand import ENTRIES, SIZE, NotedHand, Notes, Stage, noted_in, settle_for
from latchwork.queue.sharded.registry import QueueRegistry
from latchwork.queue.sharded.shards import Shards

from ..stage import Fault, Kind
from ..stage import Stage as Play
from .common import patched

PLACES = 8
"""Messages that are noted in these scripts, at most."""
CRASHES = (Kind.CRASH_BEFORE, Kind.CRASH_AFTER)


def queue_on(store):
    """The queue of these scripts: one shard; what fails stays in the sideline."""
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1, retry=False))


def memory_of_few():
    """The memory that two processes share."""
    return mmap.mmap(-1, PLACES * SIZE // ENTRIES)


def hand_in(memory):
    """The hand of the one consumer of a process."""
    notes = Notes(memory)
    notes.free = notes.free[:PLACES]
    return notes.hand(0)


def works(store, memory, handler):
    """A consumer that notes what it has in hand, for three seconds."""
    consumer = Consumer(queue_on(store), handler, concurrency=1, upkeep=False)
    consumer._state.hand = hand_in(memory)
    consumer.start()
    store.seams.sleep(3)


def settles(store, noted):
    """The other child: it settles; then the messages that come to it, and those that have failed."""
    queue = queue_on(store)
    settle_for(queue, noted, "it was killed", counts=True)
    came = [(one.payload, one.attempts) for one in queue.receive(2, timeout=2)]
    return came, [(one.payload, one.attempts) for one in queue.sideline.peek(2)]


def given_back_before_its_note_was_removed():
    """P5.33: the message was given back, and its process killed; another consumer has it, in the same slot."""
    play, memory = Play(), memory_of_few()

    def dies(store):
        queue, mine = queue_on(store), hand_in(memory)
        deliveries = queue.receive(1)
        mine.took(deliveries)
        mine.began(deliveries)
        queue.interrupting(deliveries)
        queue.give_back(deliveries)

    def takes(store):
        (delivery,) = queue_on(store).receive(1)
        store.seams.sleep(5)
        delivery.ack()
        return delivery.attempts

    play.act("p", lambda store: queue_on(store).publish("m"))
    play.act("c", dies, after=0.5)
    play.act("d", takes, after=1)
    play.act("s", lambda store: settles(store, noted_in(memory)), after=2)
    play.play()
    return play.said["d"] == 1 and play.said["s"] == ([], [])


def whoever_has_it(self, slots, _):
    return self.look(slots)


def killed_at_each_call():
    """P5.34: the consumer is killed before, and after, each of its calls in turn. No sweep runs.

    A message whose handler was done does not come again; one that was begun has failed; any other comes uncounted.
    """
    calls = killed_at(0, Kind.CRASH_BEFORE)[0]
    for number in range(1, calls + 1):
        for kind in CRASHES:
            _, begun, done, said = killed_at(number, kind)
            both = [
                ([] if "m" in begun else [("m", 1)]),
                ([("m", 1)] if "m" in begun and "m" not in done else []),
            ]
            if said != tuple(both):
                return False
    return True


def killed_in_its_handler():
    """P5.34: the message was begun, and is not done: it has failed."""
    return killed_at(0, Kind.CRASH_BEFORE, runs=100)[3] == ([], [("m", 1)])


def killed_at(number, kind, runs=0.0):
    """The calls of a consumer that is killed at one of them, what it had begun and done, and what another one finds.

    runs: the seconds that its handler takes.
    """
    play, memory, begun, done = Play({"c": {number: Fault(kind)}}), memory_of_few(), [], []

    def handler(delivery):
        begun.append(delivery.payload)
        delivery.extend()
        play.stores["c"].seams.sleep(runs)
        done.append(delivery.payload)

    play.act("p", lambda store: queue_on(store).publish("m"))
    killed = play.act("c", lambda store: works(store, memory, handler), after=0.5)
    left = []
    killed.on_death = lambda: left.append(
        bytes(memory)
    )  # a killed process writes nothing more, not in an `except` either
    play.world.at(3, killed.die)
    play.act("s", lambda store: settles(store, noted_in(left[0])), after=5)
    play.play()
    return play.plan.calls["c"], begun, done, play.said["s"]


def marks(begun, done):
    """The marks that a hand makes as handlers begin, and as they are done."""

    def patch():
        began = lambda self, deliveries: self._mark(deliveries, begun)  # noqa: E731 - as short as it gets
        ended = lambda self, deliveries: self._mark(deliveries, done)  # noqa: E731 - as above
        return mock.patch.multiple(NotedHand, began=began, done=ended)

    return patch


def waited_for(process, seams):
    """Wait until the process has died."""
    while not process.dead:
        seams.sleep(0.1)


def read_while_it_lives():
    """P5.35: the process seems to have died; it hands the message to its handler at that moment, and dies later."""
    play, memory = Play(), memory_of_few()
    begun = []

    def dies(store):
        queue, mine = queue_on(store), hand_in(memory)
        deliveries = queue.receive(1)
        mine.took(deliveries)
        store.seams.sleep(2)
        mine.began(deliveries)
        begun.append("m")
        store.seams.sleep(100)

    def parent(store):
        waited_for(killed, store.seams)
        noted = noted_in(memory)
        store.seams.sleep(2)
        return settles(store, noted)

    play.act("p", lambda store: queue_on(store).publish("m"))
    killed = play.act("c", dies, after=0.5)
    play.world.at(3, killed.die)
    play.act("s", parent, after=1)
    return play.play().said["s"] == ([], [("m", 1)])


RULES = [
    ("P5.33", given_back_before_its_note_was_removed, patched(Shards, "held_by", whoever_has_it)),
    ("P5.34 begun", killed_in_its_handler, marks(Stage.CLAIMED, Stage.DONE)),
    ("P5.34 done", killed_in_its_handler, marks(Stage.DONE, Stage.DONE)),
    ("P5.34 claims", killed_at_each_call, patched(in_hand, "_take_over", lambda *_: (0, 0))),
    ("P5.35", read_while_it_lives, lambda: mock.patch(f"{__name__}.waited_for")),
]
