"""The outbox's promises as functions, so that the mutants can be held against them too. Each makes its own worlds."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from latchwork.errors import LatchworkError, QueueFull, RecordTooBig
from latchwork.queue import Outbox
from latchwork.queue.outbox import outbox
from latchwork.queue.outbox.messages import pack
from latchwork.queue.paged import cursor, layout
from latchwork.queue.paged import queue as paged
from latchwork.queue.sharded.ledger.ledger import LEDGER_TTL
from latchwork.store import MemoryStore
from latchwork.store.local import apply
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import KINDS, Crash, Fault
from tests.queue.paged.failing import HOW, FailingFiles, interrupted
from tests.queue.paged.recording import RecordingFiles

from .world import LIMIT, SWEEP, World

CALLS = 24
"""More calls than forwarding `put_some` makes: four messages of one key are four waves of five calls."""
REFUSED_CALLS = 40
"""More calls than forwarding makes where a message is refused: the rest is published, and the message again."""
PLACES = range(1, 2_000)
"""More places than forwarding a batch has at which an interrupt may come."""


class Life:
    """A world on files in memory, in which a producer lives again and again."""

    def __init__(self, seed: int | None = None, **settings) -> None:
        self.clock = ManualClock(seed=seed, max_sleeps=5_000)
        self.world = World(MemoryStore(self.clock), self.clock, Path("/d"), **settings)
        self.files = RecordingFiles()
        self.disk = None
        self.producer = None
        self.fired: Counter[str] = Counter()

    def born(self, plan=None, **faults):
        """Start the producer, after the end of the one before it."""
        self.die()
        self.disk = FailingFiles(self.files)
        self.producer = self.world.producer(plan, files=self.disk, **faults)
        return self.producer

    def die(self) -> None:
        """As by SIGKILL: the files are as they were."""
        if self.producer is not None:
            self.fired += self.producer.store.fired
            self.producer.end()
            self.files, self.producer = self.files.killed(), None

    def machine_crash(self, keep: float, seed: int = 0) -> None:
        """The power fails: of what was not synced only a part is left."""
        self.die()
        self.files = RecordingFiles.holding(self.files.crashed(Random(seed), keep))

    def tries(self) -> bool:
        """Whether forwarding got to its end."""
        try:
            self.producer.forward()
        except (LatchworkError, Crash, KeyboardInterrupt):
            return False
        return True

    def finish(self) -> None:
        """Faults stop: one more life forwards everything."""
        self.born().forward()
        assert self.producer.outbox.lag().messages == 0
        self.world.check()


def a_fault_at_any_call_neither_loses_nor_doubles_nor_reorders(kinds=KINDS, calls=range(1, CALLS)) -> Counter:
    """One fault, or an outage from that call on that outlasts the retries: then the same process goes on, or another
    one; with more messages; with a consumer, and late, or not."""
    fired: Counter[str] = Counter()
    for kind in kinds:
        for at in calls:
            for length in (1, 6):
                for after in ((0, False, False), (0, True, True), (SWEEP, True, True), (1, True, False)):
                    fault = Fault(kind, after=3 if at % 2 else None, seconds=5)
                    life = Life()
                    try:
                        _interrupted(life, dict.fromkeys(range(at, at + length), fault), *after)
                    except (AssertionError, LatchworkError) as failure:
                        told = f"{kind} at call {at} and {length - 1} more, then {after}: {failure}"
                        raise AssertionError(told) from failure
                    fired += life.fired
    return fired


def _interrupted(life: Life, plan: dict, pause: float, consume: bool, restart: bool) -> None:
    producer = life.born(plan)
    producer.put_some(n=9)
    life.tries()
    producer.store.plan.clear()
    if consume:
        life.world.receive()
    life.clock.advance(pause)
    if restart or producer.store.dead:
        producer.store.deliver()
        life.born()
    life.producer.put_some(first=9, n=4)
    assert life.tries(), "it does not recover"
    life.producer.store.deliver()
    producer.store.deliver()
    life.finish()


AFTERWARDS = [(killed, end) for killed in (False, True) for end in ("forwarded", "killed", "crashed", "half crashed")]
"""Whether the process is killed after the disk has failed; and how it ends with the next batch: forwarded, or with all
of it published and nothing let go of, by a kill, or with the machine."""


def a_disk_that_fails_at_any_call_neither_loses_nor_doubles(hows=HOW, afterwards=AFTERWARDS) -> Counter:
    """One call of the file layer fails, or is interrupted, while a batch is published and let go of; by call."""
    fired: Counter[str] = Counter()
    for how in hows:
        for after in afterwards:
            for at in range(1, 100):
                life = _with_a_batch_waiting()
                life.disk.arm(at, how)
                life.tries()
                if (failed := life.disk.failed) is None:
                    break
                _goes_on(life, *after, f"{how.__name__} at {failed}, call {at}")
                fired[failed] += 1
    return fired


def an_interrupt_anywhere_neither_loses_nor_doubles(at=PLACES) -> int:
    """Ctrl-C comes at any of these places of the outbox, of its cursor, or of the local queue; how many there are."""
    places = 0
    for after in ((False, "killed"), (False, "crashed"), (True, "killed")):
        for place in at:
            life = _with_a_batch_waiting()
            if not interrupted(place, (outbox, cursor, paged, layout), life.producer.forward):
                break
            _goes_on(life, *after, f"an interrupt at place {place}")
            places += 1
    return places


def _with_a_batch_waiting() -> Life:
    life = Life(shards=1)
    life.born().put_some(n=2)
    life.producer.forward()
    life.producer.put_some(first=2, n=2)
    return life


def _goes_on(life: Life, killed: bool, end: str, told: str) -> None:
    try:
        if killed or life.producer.failed:
            life.born()
        life.producer.put_some(first=4, n=2)
        if end != "forwarded":
            life.producer.pq.cursor("outbox").commit = _die
        life.tries()
        if end.endswith("crashed"):
            life.machine_crash(keep=0.5 if end == "half crashed" else 0.0)
        life.finish()
    except (AssertionError, LatchworkError) as failure:
        raise AssertionError(f"{told}, {killed=}, {end}: {failure}") from failure


def _die() -> None:
    raise Crash("before the cursor is stored")


def a_refusal_amid_faults_neither_loses_nor_doubles_nor_reorders(
    kinds=("crash_after", "request_lost", "reply_lost"), calls=range(1, REFUSED_CALLS, 2)
) -> None:
    """The store refuses a message of a batch, and fails at a call, once or until it is back; all is well again later
    than a ledger is kept, and then the store takes the message.
    """
    for kind in kinds:
        for at in calls:
            for length, restart in ((1, False), (1, True), (12, True)):
                life = Life()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(apply, "RECORD_SIZE_LIMIT", LIMIT)
                    producer = life.born(dict.fromkeys(range(at, at + length), Fault(kind, seconds=5)))
                    _put_with_a_big_one(producer)
                    life.tries()
                    producer.store.plan.clear()
                    _stays_refused(life, restart or producer.store.dead)
                life.producer.put("a", 8)
                _finish(life, f"{kind} at call {at} and {length - 1} more, {restart=}")


def a_disk_that_fails_amid_a_refusal_neither_loses_nor_doubles(hows=HOW, calls=range(1, 40)) -> Counter:
    """One call of the file layer fails, or is interrupted, while a batch with a message that is refused is published;
    then the process goes on, or is killed, or the machine crashes.
    """
    fired: Counter[str] = Counter()
    for how in hows:
        for crash in (None, 0.0, 0.5):
            for at in calls:
                life = Life(settings={"page_size": 1 << 15})
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(apply, "RECORD_SIZE_LIMIT", LIMIT)
                    _put_with_a_big_one(life.born())
                    life.disk.arm(at, how)
                    life.tries()
                    if (failed := life.disk.failed) is None:
                        break
                    if crash is not None:
                        life.machine_crash(keep=crash, seed=at)
                    _stays_refused(life, restart=life.producer is None or life.producer.failed)
                _finish(life, f"{how.__name__} at {failed}, call {at}, {crash=}")
                fired[failed] += 1
    return fired


def _put_with_a_big_one(producer) -> None:
    producer.put_all([("a", 0), (None, 1)])
    producer.put_big("a", 2)
    producer.put_all([("b", 3), ("a", 4), ("b", 5)])


def _stays_refused(life: Life, restart: bool) -> None:
    """Forwarding goes on for longer than a ledger is kept; consumers take what comes."""
    life.world.receive()
    if restart:
        life.born()
    life.producer.put_all([("a", 6), ("b", 7)])
    for _ in range(3):
        with pytest.raises(RecordTooBig):
            life.producer.forward()
        life.producer.store.deliver()
        life.world.receive()
        assert life.producer.outbox.lag().held == 3
        life.clock.advance(LEDGER_TTL)


def _finish(life: Life, told: str) -> None:
    """The store takes large records again."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apply, "RECORD_SIZE_LIMIT", 1 << 20)
            life.finish()
    except (AssertionError, LatchworkError) as failure:
        raise AssertionError(f"{told}: {failure}") from failure


def rows_that_fail_alone_keep_their_order(calls=range(1, CALLS)) -> None:
    """A part of a batch arrives, and a consumer comes before the rest does."""
    for kind in ("dropped", "request_lost", "reply_lost", "late"):
        for at in calls:
            for rows in ((0,), (1, 2)):
                life = Life(shards=1)
                life.born({at + n: Fault(kind, rows=rows) for n in range(3)}).put_some(n=9)
                life.tries()
                life.world.receive()
                life.finish()


def a_process_killed_anywhere_between_two_batches_repeats_nothing(calls=range(1, CALLS)) -> None:
    """A batch that was published and not let go of is not published again, though it is longer when it is repeated."""
    for at in calls:
        life = Life()
        life.born({at: "crash_after"}).put_some(n=9)
        life.tries()
        life.born().put_some(first=9, n=30)
        life.finish()
        assert len(life.world.received) == 9 + 30


def what_was_put_survives_the_machine() -> None:
    """Whatever the machine's crash leaves of what was not synced."""
    for seed in range(10):
        life = Life()
        life.born().put_some(n=12)
        life.machine_crash(keep=(0.0, 0.5)[seed % 2], seed=seed)
        life.finish()
        assert len(life.world.received) == 12


def what_is_published_is_on_the_disk() -> None:
    """A put is between its append and its sync when it is forwarded, and the machine crashes: its place is taken."""
    for at in range(1, 6):
        life = Life()
        producer = life.born()
        producer.put_some(n=3)
        producer.forward()
        producer.put("b", 3)
        producer.pq.append(pack(producer.outbox._codec, ["c", 0], "0" * 20, "c", None))
        producer.store.plan = {producer.store._number + at: "crash_after"}
        life.tries()
        life.machine_crash(keep=0.0)
        life.born().put_some(first=4, n=3)
        life.finish()
        assert {number for _, number in life.world.received} >= set(range(7))


def what_waits_is_not_reclaimed() -> None:
    """Pages older than the lifetime stay until they are forwarded, also where nothing was forwarded yet."""
    life = Life()
    for number in range(40):
        life.clock.advance(10)
        life.producer or life.born()
        life.producer.put("a", number)
    life.finish()
    assert len(life.world.received) == 40


def a_full_budget_refuses() -> None:
    """It takes as much as fits, drops nothing, and takes more when some was forwarded."""
    life = Life(options={"disk_budget": 1500})
    for _ in range(3):
        producer = life.born()
        life.clock.advance(1)
        with pytest.raises(QueueFull):
            until_full(producer)
        assert producer.pq.disk_bytes() <= 1500 + 2 * 512
        producer.forward()
    life.finish()


def until_full(producer) -> None:
    for _ in range(1000):
        producer.put("a", len(producer.world.acknowledged))


def outboxes_of_one_name_stay_apart() -> None:
    """Two machines: both begin at the first position of a first page, and both go to one queue."""
    life = Life()
    other = life.world.producer(files=RecordingFiles())
    life.born().put_some(n=5)
    other.put_all([(f"other {number}", number) for number in range(5)])
    other.forward()
    life.finish()
    assert len(life.world.received) == 10


def objects_of_one_outbox_take_turns() -> None:
    """Two objects and two threads would lose what the one has read and the other commits; the second has to wait."""
    life = Life()
    producer = life.born()
    again = Outbox(producer.pq, producer.outbox._queue)
    producer.put_some(n=5)
    free = []
    producer.store.next(lambda: free.append(producer.pq.cursor("outbox").turn.acquire(blocking=False)))
    producer.forward()
    assert free == [False]
    assert again.forward() == 0
    life.finish()


def any_mix_of_faults_neither_loses_nor_doubles_nor_reorders(seeds) -> Counter:
    """Lives with faults by chance, ended by kills and crashes of the machine, while a consumer comes and goes."""
    fired: Counter[str] = Counter()
    for seed in seeds:
        chance, life, number = random.Random(seed), Life(seed), 0
        for _ in range(chance.randrange(2, 6)):
            producer = life.born(seed=chance.randrange(10**6), rate=0.12)
            for _ in range(chance.randrange(1, 5)):
                n = chance.choice((1, 5, 12, 120))
                producer.put_some(number, n)
                number += n
                life.disk.arm(chance.randrange(40), chance.choice(HOW))
                life.tries()
                life.disk.arm(0, None)
                if producer.store.dead or producer.failed:
                    break
                life.clock.advance(chance.choice((0, 1, SWEEP / 3, SWEEP)))
                if chance.random() < 0.4:
                    life.world.receive(chance.choice((3, 1000)))
            if chance.random() < 0.3:
                life.machine_crash(keep=chance.random(), seed=seed)
            producer.store.deliver()
        try:
            life.finish()
        except (AssertionError, LatchworkError) as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
        fired += life.fired
    return fired
