"""Publishing exactly once by a ledger (P6), and reading the same range twice as a stream does (P7)."""

from __future__ import annotations

from unittest import mock

from msgspec import structs

from latchwork.queue.sharded import shards as pointers
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.ledger import chunks as ledger_chunk
from latchwork.queue.sharded.ledger import ledger
from latchwork.queue.sharded.ledger import writer as ledger_writer
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.upkeep import sweep as sweeping
from latchwork.queue.sharded.upkeep.sweeper import Sweeper
from latchwork.store import Exists

from ..stage import Fault, Kind, Stage
from ..workload.sharded import Office, Term
from .common import rule
from .sharded import queue_on

ROWS = [Outgoing("m"), Outgoing("n")]


def publish(store):
    """An attempt at a partition of two rows."""
    return Ledger(queue_on(store), "job").publish(0, ROWS)


def consume(store):
    """All that is in the queue, acknowledged."""
    queue = queue_on(store)
    found = queue.receive(10)
    queue.ack_many(found)
    return [delivery.payload for delivery in found]


def attempt_that_dies_before_it_says_written():
    """P6: everything is written, then the process dies; all is read and acknowledged; then another attempt comes."""
    stage = Stage({"a": {7: Fault(Kind.CRASH_BEFORE)}})
    stage.act("setup", queue_on)
    stage.act("a", publish, after=0.1)
    stage.act("c", consume, after=1)
    stage.act("b", publish, after=2)
    stage.play()
    left = [stored for stored in stage.server.snapshot().values() if stored.bins.get("data") is not None]
    return sorted(stage.said["c"]) == ["m", "n"] and not left


def nothing_kept_of_the_deleted():
    def remove(self, held, real=pointers.Shards.remove):
        return real(self, [one._replace(envelope=structs.replace(one.envelope, keep_id=0)) for one in held])

    return mock.patch.object(pointers.Shards, "remove", remove)


def two_attempts_at_once():
    """P6: a second attempt begins while the first has not made its ledger record yet."""
    stage = Stage({"a": {4: 0.5}})
    stage.act("setup", queue_on)
    stage.act("a", publish, after=0.1)
    stage.act("b", publish, after=0.2)
    stage.act("c", consume, after=5)
    return sorted(stage.play().said["c"]) == ["m", "n"]


def ledger_of_the_first_is_overwritten():
    return mock.patch.object(ledger_chunk, "Exists", mock.Mock(CREATE=Exists.ANY))


def attempt_slower_than_the_tombstones():
    """P6: a write arrives after its slot was given up, the message went out from another, the tombstone has expired."""
    stage = Stage({"a": {5: 30.0}})

    def attempt(store):
        return Ledger(queue_on(store), "job").publish(0, [Outgoing("m")])

    stage.act("setup", queue_on)
    stage.act("a", attempt, after=0.1)
    stage.act("hasty", consume, after=0.2)
    stage.act("b", attempt, after=1)
    stage.act("c", consume, after=2)
    stage.play()
    left = [stored for stored in stage.server.snapshot().values() if stored.bins.get("data") is not None]
    return stage.said["hasty"] == [] and stage.said["c"] == ["m"] and not left


def tombstones_left_to_expire():
    return mock.patch.object(ledger_writer.ChunkWriter, "_closed", lambda self, slots: set(slots))


def late_record_seen_by_a_deposed_leader():
    """P6: a slot was passed by the sweep, is then filled, and stamped by a leader who has not heard of the pass."""
    late, asleep = {5: 30.0, 7: 5.0}, {5: 31.5}
    stage = Stage({"a": late, "c": {3: Fault(Kind.CRASH_AFTER)}, "deposed": asleep})

    def sweeps(store, epoch, times):
        sweeper = Sweeper(queue_on(store).registry, Office(Term(epoch)))
        for _ in range(times):
            sweeper.run_once()
            store.seams.sleep(5)

    stage.act("setup", queue_on)
    stage.act("a", lambda store: Ledger(queue_on(store), "job").publish(0, [Outgoing("m")]), after=0.1)
    stage.act("c", consume, after=0.3)
    stage.act("deposed", lambda store: sweeps(store, 1, 1), after=1)
    stage.act("leader", lambda store: sweeps(store, 2, 10), after=1.5)
    stage.act("b", consume, after=60)
    stage.play()
    left = [stored for stored in stage.server.snapshot().values() if stored.bins.get("data") is not None]
    return stage.said["a"].new == 1 and stage.said["b"] == ["m"] and not left


def seen_is_like_taken():
    return mock.patch.object(sweeping, "SEEN", "taken")


def attempt_that_is_repeated_after_the_sweep_while_the_servers_clock_is_back():
    """P6: an attempt dies before its write; its slot is claimed, its consumer dies, the sweep passes it; then comes
    the next attempt. By the server's clock no time has gone by at all."""
    stage = Stage({"a": {5: Fault(Kind.CRASH_BEFORE)}, "c": {3: Fault(Kind.CRASH_AFTER)}})

    def leader(store):
        sweeper = Sweeper(queue_on(store).registry, Office(Term(1)))
        for _ in range(10):
            sweeper.run_once()
            store.seams.sleep(5)

    def attempt(store):
        return Ledger(queue_on(store), "job").publish(0, [Outgoing("m")])

    stage.act("setup", queue_on)
    stage.act("a", attempt, after=0.1)
    stage.act("c", consume, after=0.3)
    stage.world.at(0.5, lambda: setattr(stage.world, "server_offset", stage.world.server_offset - 3600))
    stage.act("leader", leader, after=1)
    stage.act("b", attempt, after=60)
    stage.act("d", consume, after=70)
    stage.play()
    left = [stored for stored in stage.server.snapshot().values() if stored.bins.get("data") is not None]
    return stage.said["d"] == ["m"] and not left


def ledger_read_while_it_grows():
    """P6: while a batch reads the chunks, the second and the third are made; the third's row is read once more."""
    stage = Stage({"a": {7: 0.1}, "b": {4: Fault(Kind.DROPPED)}})

    def attempt(store):
        return Ledger(queue_on(store), "job", batch=1).publish(0, [*ROWS, Outgoing("o")])

    stage.act("setup", queue_on)
    stage.act("a", attempt, after=0.1)
    stage.act("b", attempt, after=0.2)
    stage.act("c", consume, after=5)
    return sorted(stage.play().said["c"]) == ["m", "n", "o"]


def chunks_behind_a_gap_count():
    def chunks(records):
        (first,) = records.read([0])
        rest = records.read(range(1, ledger.WINDOW)) if first else []
        return [chunk for chunk in (first, *rest) if chunk]

    return mock.patch.object(ledger, "chunks", chunks)


def range_read_twice_while_its_producer_is_slow():
    """P7: a range holds a slot whose message is still on its way; it reads the same before and after it comes."""
    stage = Stage({"p": {3: 1.0}})
    stage.act("setup", queue_on)

    def reader(store):
        queue = queue_on(store).pointers
        (first,) = ranges.read(queue, 0, 0, 1)
        store.seams.sleep(3)
        (again,), (behind,) = ranges.read(queue, 0, 0, 1), ranges.read(queue, 0, 1, 2)
        return [first, again, [m.data for _, m in behind]]

    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("r", reader, after=0.3)
    first, again, behind = stage.play().said["r"]
    return first == again == [] and len(behind) == 1


def nothing_given_up():
    return mock.patch.object(ranges, "_given_up", return_value=[])


RULES = [
    ("P6 keepId", attempt_that_dies_before_it_says_written, nothing_kept_of_the_deleted),
    ("P6 first", two_attempts_at_once, ledger_of_the_first_is_overwritten),
    ("P6 closed", attempt_slower_than_the_tombstones, tombstones_left_to_expire),
    ("P6 seen", late_record_seen_by_a_deposed_leader, seen_is_like_taken),
    (
        "P6 young",
        attempt_that_is_repeated_after_the_sweep_while_the_servers_clock_is_back,
        rule("ledger", "what another attempt reserved counts as young"),
    ),
    ("P6 gap", ledger_read_while_it_grows, chunks_behind_a_gap_count),
    ("P7 replay", range_read_twice_while_its_producer_is_slow, nothing_given_up),
]
