"""One message whose record is damaged, or is another program's: it is read, or parked as unreadable, or stays; those
beside it are handled as if it were not there, and nothing is loaded twice.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from latchwork.errors import InvalidRequest, Unavailable
from latchwork.queue import Shovel
from latchwork.queue.sharded import envelope, rules, shards, stream
from latchwork.queue.sharded.envelope import BINS, DAMAGED, KEPT_ID
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.shards import Shards
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.stats import stats_of
from latchwork.retry import Poll
from latchwork.store import Put

HOSTILE = (
    "text",
    "",
    "x" * 5_000,
    b"bytes",
    -1,
    2**62,
    -(2**63),
    2**63 - 1,
    1.5,
    True,
    [],
    [1, [2]],
    {},
    {1: "a", "k": [3]},
)
"""Values that a bin may hold after damage, or of another program's."""
MESSAGES = len(HOSTILE) + 4
"""One for each of them, and some that nothing happens to."""
CHANGED = [bin for bin in BINS if bin != "data"] + ["fireTS", "modified_at", "v", "delivery"]


def damage(world, queue, slot, **bins):
    """Put these values into the bins of a message's record."""
    world.store.operate(queue.key(slot), *(Put(bin, value) for bin, value in bins.items()))


def damage_each(world, queue, bin):
    """Put each hostile value into this bin of a message of its own, of those that nobody has received."""
    slots = [Slot(state.shard, n) for state in queue.states() for n in range(state.fired + 1, state.loaded + 1)]
    assert len(slots) == MESSAGES
    for slot, bad in zip(slots[: len(HOSTILE)], HOSTILE, strict=True):
        damage(world, queue, slot, **{bin: bad})


def published(process, n, **options):
    ids = process.queue.publish_many(range(n), **options)
    places = {}
    for state in process.queue.pointers.states():
        for pointer in range(state.fired + 1, state.loaded + 1):
            slot = Slot(state.shard, pointer)
            places[process.store.get(process.queue.pointers.key(slot)).bins["msgId"]] = slot
    return ids, places


def take(process, payloads):
    """Receive what there is; the payloads are added to those that were handled."""
    deliveries = process.queue.receive(100)
    payloads.extend(delivery.payload for delivery in deliveries)
    return deliveries


def a_while(process, *, sweeps=1):
    """Let the sweeper and the shovel run, which must find nothing that they cannot move."""
    for _ in range(sweeps):
        process.world.lapse()
        report = process.sweeper().run_once()
        assert report.ok, report.failures
        assert Shovel(process.queue).run_once().errors == ()


def unlike_any(monkeypatch, message_id):
    """Let the payload of this message come back as something that no record can hold."""
    original = envelope.from_bins

    def from_bins(bins):
        found = original(bins)
        return replace(found, data=object()) if found and found.msg_id == message_id else found

    monkeypatch.setattr(rules, "from_bins", from_bins)
    monkeypatch.setattr(shards, "from_all", lambda rows: [from_bins(bins) for bins in rows])


def newest(queue):
    """The slot of a message that nobody has received."""
    return next(Slot(state.shard, state.loaded) for state in queue.states() if state.loaded > state.fired)


def waiting(process):
    """How many messages there are, wherever they are."""
    views = (process.queue, process.queue.sideline, process.queue.parked)
    return sum(len(view.peek_all()) for view in views)


@pytest.mark.parametrize("bin", ["msgId", "reason", "lastError", "headers"])
def test_a_text_that_no_store_takes_is_mended_among_sound_messages_too(bin):
    bad = {"name": "a\0b"} if bin == "headers" else "a\0b"
    sound = {"data": "1", "msgId": "m-1", "keepId": 60}
    records = [sound, {**sound, bin: bad}, sound]
    found = envelope.from_all(records)
    assert found == [envelope.from_bins(bins) for bins in records]
    assert b"u0000" not in msgspec.json.encode(found[1])


# ---- the id that is to be kept


@pytest.mark.parametrize("bad", [-1, 2**40, 2**63 - 1, "2", [1], b"x"], ids=repr)
def test_a_damaged_time_to_keep_an_id_doubles_nobody(simulated, bad):
    process = simulated.process()
    ids, places = published(process, 20)
    damage(simulated, process.queue.pointers, places[ids[3]], keepId=bad)
    assert len(process.receive(100)) == 20
    sweeper = process.sweeper()
    for _ in range(4):
        simulated.lapse()
        report = sweeper.run_once()
        assert report.ok, report.failures
        Shovel(process.queue).run_once()
    assert process.queue.depth().ready + process.queue.depth().sideline == 20
    deliveries = process.receive(100)
    assert sorted(delivery.message_id for delivery in deliveries) == sorted(ids)
    process.queue.ack_many(deliveries)
    assert waiting(process) == 0


def test_an_id_whose_time_is_damaged_is_kept_as_long_as_a_ledger_is(simulated):
    process = simulated.process()
    Ledger(process.queue, "s").publish(0, [Outgoing("a", "m-1")])
    (slot,) = [Slot(state.shard, 1) for state in process.queue.pointers.states() if state.loaded]
    damage(simulated, process.queue.pointers, slot, keepId="2 days")
    process.queue.receive()[0].ack()
    record = simulated.store.get(process.queue.pointers.key(slot))
    assert record.bins["msgId"] == "m-1"
    assert "data" not in record.bins
    assert KEPT_ID - 5 <= record.ttl <= KEPT_ID


@pytest.mark.parametrize("bad", [-1, 2**40, "2", [1]], ids=repr)
def test_a_stream_acknowledges_beside_a_damaged_time_to_keep_an_id(simulated, bad):
    simulated.shards = 1
    process = simulated.process()
    ids, places = published(process, 5)
    damage(simulated, process.queue.pointers, places[ids[2]], keepId=bad)
    owner = stream.take(process.queue.pointers, "s")
    assert [len(step) for step in stream.read(process.queue.pointers, 0, 0, 5, owner)] == [5]
    assert stream.acknowledge(process.queue.pointers, owner, 0, 5) == 5
    assert list(stream.read(process.queue.pointers, 0, 0, 5, owner)) == [[]]


# ---- any other bin


@pytest.mark.matrix
@pytest.mark.parametrize("bin", CHANGED)
def test_a_damaged_bin_keeps_no_message_from_being_delivered(simulated, bin):
    process, handled = simulated.process(), []
    process.queue.publish_many(range(MESSAGES))
    damage_each(simulated, process.queue.pointers, bin)
    for _ in range(4):  # what looks as if somebody else had it is left alone for one sweep duration
        for delivery in take(process, handled):
            assert delivery.enqueued_at.year >= 1970
            assert delivery.attempts >= 0
            delivery.ack()
        a_while(process)
    assert sorted(handled) == list(range(MESSAGES))
    assert waiting(process) == 0


@pytest.mark.matrix
@pytest.mark.parametrize("bin", CHANGED)
def test_a_damaged_bin_keeps_nothing_from_being_swept_shovelled_and_redriven(simulated, bin):
    simulated.options = {"max_deliveries": 2, "backoff": Poll(low=60, high=60, jitter=0)}
    process, handled = simulated.process(), []
    main, sideline, parked = (view.pointers for view in (process.queue, process.queue.sideline, process.queue.parked))
    process.queue.publish_many(range(MESSAGES))
    damage_each(simulated, main, bin)
    process.queue.receive(100)
    simulated.lapse()
    for _ in range(2):
        assert process.sweeper().run_once().ok
        simulated.lapse()
    if bin == "interrupted":  # then it has not failed yet
        process.queue.fail_many(failing := process.queue.receive(100), [("rejected", None)] * len(failing))
    assert process.queue.depth().sideline == MESSAGES
    damage_each(simulated, sideline, bin)
    for _ in range(6):
        for delivery in process.queue.receive(100):
            delivery.nack()
        a_while(process)
    assert process.queue.depth().parked == MESSAGES
    damage_each(simulated, parked, bin)
    for _ in range(4):
        process.queue.redrive(100)
        process.queue.ack_many(take(process, handled))
        a_while(process)
    assert sorted(handled) == list(range(MESSAGES))
    assert waiting(process) == 0


def test_a_message_says_which_of_its_bins_were_damaged(world):
    process = world.process()
    ids, places = published(process, 2, headers={"trace": "7"})
    damage(world, process.queue.pointers, places[ids[0]], attempts="many", enqueuedAt=[1], notBefore=2**62)
    found = {delivery.message_id: delivery for delivery in process.receive(2)}
    assert found[ids[0]].headers == {"trace": "7", DAMAGED: "enqueuedAt, notBefore"}
    assert found[ids[0]].attempts == 1
    assert found[ids[1]].headers == {"trace": "7"}
    found[ids[0]].nack()
    Shovel(process.queue).run_once()
    (again,) = process.receive(1)
    assert again.headers[DAMAGED] == "enqueuedAt, notBefore"
    assert again.attempts == 2


@pytest.mark.matrix
@pytest.mark.parametrize("value", ["seven", -3, -(2**63), 2**63 - 1, [1], {"a": 1}, 1.5, True], ids=repr)
def test_attempts_that_cannot_be_counted_on_from_begin_anew(world, value):
    process = world.process()
    ids, places = published(process, 3)
    damage(world, process.queue.pointers, places[ids[1]], attempts=value)
    assert {delivery.message_id: delivery.attempts for delivery in process.receive(10)} == dict.fromkeys(ids, 1)


def test_a_message_that_must_wait_for_years_is_due(simulated):
    process = simulated.process()
    process.queue.publish("a")
    process.receive()[0].nack()
    sideline = process.queue.sideline.pointers
    later = process.queue.pointers.now_ms() + 3 * 365 * 86_400_000
    damage(simulated, sideline, newest(sideline), notBefore=later)
    assert Shovel(process.queue).run_once().moved == 1


def test_the_age_of_the_oldest_message_is_that_of_its_record_where_its_date_is_none(simulated):
    process = simulated.process()
    process.queue.publish("a")
    for bad in HOSTILE:
        damage(simulated, process.queue.pointers, newest(process.queue.pointers), enqueuedAt=bad)
        assert 0 <= stats_of(process.queue).oldest_age < 60, bad


# ---- the payload


@pytest.mark.matrix
@pytest.mark.parametrize("bad", [bad for bad in HOSTILE if type(bad) is not str], ids=repr)
@pytest.mark.parametrize("codec", ["json", "bytes"])
def test_a_payload_of_another_kind_is_parked_as_unreadable(simulated, codec, bad):
    if codec == "bytes" and type(bad) is bytes:
        bad = "text"
    simulated.options = {"codec": codec}
    process, handled = simulated.process(), []
    process.queue.publish_many([b"payload"] * 5 if codec == "bytes" else ["payload"] * 5)
    damage(simulated, process.queue.pointers, newest(process.queue.pointers), data=bad)
    for _ in range(3):
        process.queue.ack_many(take(process, handled))
        a_while(process)
    assert len(handled) == 4
    (parked,) = process.queue.parked.peek_all()
    assert (parked.reason, parked.unreadable, parked.raw) == ("unreadable", True, bad)


def test_what_no_record_can_hold_stays_where_it_is_and_takes_no_slots(simulated, monkeypatch):
    process = simulated.process()
    ids, _ = published(process, 5)
    process.queue.receive(10)
    unlike_any(monkeypatch, ids[2])
    for round in range(3):
        simulated.lapse()
        report = process.sweeper().run_once()
        assert (report.refused, report.rehomed) == (1, 0 if round else 4)
        assert sum(state.loaded for state in process.queue.sideline.pointers.states()) == 4


def test_what_has_no_room_for_its_error_goes_to_the_sideline_without(world):
    process = world.process()
    process.queue.publish("x")
    slot = newest(process.queue.pointers)
    room = 1024 * 1024 - 400
    damage(world, process.queue.pointers, slot, data='"' + "x" * room + '"')
    (delivery,) = process.receive()
    delivery.nack(error="e" * 2_000)
    (message,) = process.queue.sideline.peek()
    assert (message.reason, message.last_error) == ("rejected", None)
    assert process.store.get(process.queue.pointers.key(slot)) is None


def test_the_error_of_a_redrive_has_the_ids_of_all_that_were_moved_before_it(simulated, monkeypatch):
    simulated.shards, simulated.options = 4, {"max_deliveries": 1}
    process = simulated.process()
    process.queue.publish_many(range(400))
    for _ in range(2):
        for delivery in process.queue.receive(1000):
            delivery.nack()
        Shovel(process.queue).run_once()
    parked = process.queue.parked.pointers
    claims = []

    def claim(self, shard, *rest, **more):
        if self is parked:
            claims.append(shard)
            if len(claims) == 3:
                raise Unavailable("no node")
        return before(self, shard, *rest, **more)

    before = Shards.claim
    monkeypatch.setattr(Shards, "claim", claim)
    with pytest.raises(Unavailable, match="no node") as failure:
        process.queue.redrive(400)
    moved = failure.value.details["redriven"]
    assert len(moved) == len(set(moved)) == 200, "of two shards"
    assert process.queue.depth().ready == 200
    monkeypatch.undo()
    assert len(process.queue.redrive(400)) == 200


def test_one_that_cannot_be_moved_keeps_the_redriven_ones_from_nobody(simulated, monkeypatch):
    simulated.options = {"max_deliveries": 1}
    process = simulated.process()
    process.queue.publish_many(range(6))
    for _ in range(2):
        for delivery in process.queue.receive(10):
            delivery.nack()
        Shovel(process.queue).run_once()
    assert process.queue.depth().parked == 6
    unlike_any(monkeypatch, process.queue.parked.peek()[0].message_id)
    with pytest.raises(InvalidRequest) as failure:
        process.queue.redrive(10)
    assert len(failure.value.details["redriven"]) == 5
    assert process.queue.depth().ready == 5
