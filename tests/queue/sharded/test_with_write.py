"""A message that is published with a write of one's own: both or neither, and once (docs/protocols P28)."""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from contextlib import suppress

import pytest

from latchwork.coord.effects import marks
from latchwork.coord.effects.attempts import END, Condition, give_up
from latchwork.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, RecordTooBig, Refused, Unavailable
from latchwork.queue import Publish, QueueConfig, QueueRegistry, State
from latchwork.queue.sharded.delayed import conditional as entries
from latchwork.queue.sharded.publishing import with_write
from latchwork.queue.sharded.upkeep import conditions
from latchwork.queue.sharded.upkeep.timers import QueueTimers, Timers
from latchwork.spark import once_per_batch
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Put, Read, Update
from latchwork.store.port import DelegatingStore
from latchwork.testing import bring_back, inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, Fault

from .delayed.test_delayed import Farms, late_row, run_until
from .world import Leadership, dies

PATIENCE = 1.0
DAY = 86_400


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Messages are due within a quarter of a second, and writers get a second."""
    monkeypatch.setattr(entries, "SOON", 0)
    monkeypatch.setattr(entries, "LEAST", -60_000)
    for name, value in (("PATIENCE", int(PATIENCE * 1000)), ("AGAIN", 100), ("LONG", 1_000)):
        monkeypatch.setattr(conditions, name, value)


@pytest.fixture
def order(world):
    key = Key(f"{world.client}_orders", uuid.uuid4().hex[:10])
    world.store.operate(key, Put("state", "new"), exists=Exists.ANY)
    return key


class Shop:
    """A process with the queue of mails; its leader is another one, which meets no faults."""

    def __init__(self, world, plan=None):
        self.world, self.process = world, world.process(plan)
        self.store, self.mails = self.process.store, self.process.queue
        self.leader = world.process()
        self.timers = QueueTimers(self.leader.queue)

    def pay(self, order, payload="paid", **options):
        return self.store.operate(order, Put("state", "paid"), publish=Publish(payload, queue=self.mails), **options)

    def sent(self, seconds=0.3):
        """The messages that come when some time has passed; as often as they come."""
        self.world.pass_time(seconds)
        with suppress(NotFound):  # there was no message yet
            self.timers.run(Leadership(1))
        found = Counter()
        while some := self.leader.queue.receive(100):
            self.leader.queue.ack_many(some)
            found.update(delivery.payload for delivery in some)
        return found


def state(world, order):
    record = world.store.get(order)
    return record and record.bins.get("state")


def test_a_write_and_its_message_both_happen_once_and_the_result_is_the_messages_id(world, order):
    shop = Shop(world)
    (message_id,) = shop.pay(order)
    assert state(world, order) == "paid"
    world.pass_time(0.3)
    shop.timers.run(Leadership(1))
    (delivery,) = shop.leader.queue.receive(10)
    assert (delivery.message_id, delivery.payload) == (message_id, "paid")
    delivery.ack()
    assert not shop.sent()


def test_it_costs_two_calls_more_than_the_write_and_in_hundreds_two_in_all(world, order):
    shop = Shop(world)
    shop.pay(order)  # the first one of a process learns the server's time
    before = shop.process.calls
    shop.pay(order)
    assert shop.process.calls - before == 3
    rows = [Update(Key(order.set, f"{order.name}-{n}"), (Put("n", n),), exists=Exists.ANY) for n in range(100)]
    before = shop.process.calls
    shop.store.operate_many(rows, publish=[Publish(n, queue=shop.mails) for n in range(100)]).raise_unless()
    assert shop.process.calls - before == 3
    assert shop.sent() == Counter({"paid": 2} | dict.fromkeys(range(100), 1))


class Halting(DelegatingStore):
    """Applies the rows of a batch from the last to the first, and stops before the first: a minute passes, in which the
    server's clock is set back by an hour.
    """

    def _operate_many(self, updates):
        rows = []
        for update in reversed(updates):
            if len(rows) == len(updates) - 1:
                self.halt()
            rows += super()._operate_many([update])
        return rows[::-1]


def test_a_message_comes_whose_entry_is_stored_after_its_place_was_looked_at_and_the_clock_was_set_back(monkeypatch):
    monkeypatch.undo()  # the real times
    clock = ManualClock()
    store, order = MemoryStore(clock), Key("orders", "o")
    there = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("mails", shards=1))
    store.operate(order, Put("state", "new"), exists=Exists.ANY)
    slow = Halting(store)
    mails = QueueRegistry(slow, "c", farm_id="f").get("mails")

    def halt():
        run_until(Timers(Farms(there)), clock, 60)
        clock.step(-3_600)

    slow.halt = halt
    slow.operate(order, Put("state", "paid"), publish=Publish("paid", queue=mails))
    slow.halt = lambda: None
    run_until(Timers(Farms(there)), clock, 7_200)
    assert [one.payload for one in there.receive(10)] == ["paid"]


def test_a_message_whose_update_was_given_up_meanwhile_is_counted_once(world, order, monkeypatch):
    """The upkeep drops it before its writer, which was stopped, withdraws it."""
    shop, applied, is_first = Shop(world), with_write._applied, [True]
    shop.mails.publish("waits", delay=3600)

    def late(*given):
        if is_first:
            is_first.clear()
            shop.sent(PATIENCE + 2)
        return applied(*given)

    monkeypatch.setattr(with_write, "_applied", late)
    shop.pay(order)
    assert shop.sent() == Counter({"paid": 1})
    assert shop.mails.depth().delayed == 1


@pytest.mark.parametrize(
    ("how", "error"),
    [({"when": Bin("state", str).eq("sent")}, Refused), ({"exists": Exists.CREATE}, AlreadyExists)],
)
def test_a_write_that_is_refused_sends_no_message_and_leaves_nothing(world, order, how, error):
    shop = Shop(world)
    with pytest.raises(error):
        shop.pay(order, **how)
    with pytest.raises(NotFound):
        shop.pay(Key(order.set, "nobody"))
    assert shop.mails.depth().delayed == 0
    assert not shop.sent(PATIENCE + 0.5)
    assert shop.mails.depth().delayed == 0
    assert state(world, order) == "new"
    assert not [record for record in world.store.scan(f"{world.client}_delay_set") if record.key.name.startswith("E/")]


# ---- processes that die, and requests that come late


def test_the_late_update_of_a_writer_that_was_given_up_is_refused(world, order):
    shop = Shop(world)
    shop.pay(order, "first")
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown):
        shop.pay(order, "second", when=Bin("state", str).eq("paid"))
    assert shop.sent(PATIENCE + 0.5) == {"first": 1}
    assert shop.store.pending
    shop.store.deliver()
    assert not shop.sent(PATIENCE)
    assert [mark[1:] for mark in world.store.get(order).bins[marks.BIN].values()].count([False, marks.GIVEN_UP]) == 1


def test_an_entry_that_was_sent_again_after_its_bucket_was_passed_and_the_clock_set_back_comes(monkeypatch):
    monkeypatch.setattr(entries, "SOON", 1_500)
    monkeypatch.setattr(entries, "LEAST", 1_000)
    clock, order = ManualClock(), Key("orders", "o")
    store = MemoryStore(clock)
    queue = QueueRegistry(store, "c").create(QueueConfig("mails", shards=1, retry=False))
    store.operate(order, Put("state", "new"), exists=Exists.ANY)
    store.operate(order, Put("state", "seen"), publish=Publish("before", queue=queue))
    timers = QueueTimers(queue)

    def passes(seconds):
        for _ in range(seconds):
            clock.advance(1)
            timers.run(Leadership(1))

    def passed():
        passes(20)
        clock.step(-20)

    with late_row(store, "E/", passed):
        store.operate(order, Put("state", "paid"), publish=Publish("paid", queue=queue))
    passes(60)
    assert [one.payload for one in queue.receive(10)] == ["before", "paid"]


def test_a_late_update_that_comes_before_its_writer_is_given_up_has_its_message(world, order, monkeypatch):
    patience = 2.0  # seconds in which a busy machine looks at it the first time
    monkeypatch.setattr(conditions, "PATIENCE", int(patience * 1000))
    shop = Shop(world)
    shop.pay(order, "first")
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown):
        shop.pay(order)
    assert shop.sent() == {"first": 1}
    shop.store.deliver()
    assert shop.sent(patience + 0.5) == {"paid": 1}
    assert state(world, order) == "paid"


FIRST = 4
"""Calls more that the first message of a queue takes. On a real server two are made only if its clock stood still."""


@pytest.mark.parametrize("fault", ["crash_before", "crash_after"])
@pytest.mark.parametrize("call", range(1, 4 + FIRST))
def test_a_writer_may_die_at_any_call(world, order, call, fault):
    shop = Shop(world, {call: fault})
    assert dies(lambda: shop.pay(order)) or world.real
    sent = shop.sent(PATIENCE + 0.5)
    assert sent == ({"paid": 1} if state(world, order) == "paid" else {})
    assert not shop.sent(PATIENCE)


def test_a_writer_that_was_given_up_while_it_was_stopped_begins_again(world, order):
    shop = Shop(world)
    shop.pay(order, "first")
    shop.sent()

    def stopped():
        assert not shop.sent(PATIENCE + 0.5)

    shop.process.fails([2], stopped)
    shop.pay(order, "second")
    assert shop.sent() == {"second": 1}


def test_an_update_goes_by_the_generation_from_before_its_attempt_had_a_name(world, order, monkeypatch):
    """P28.6: while the writer is stopped it is given up, and that mark leaves the bin, as its process learns."""
    monkeypatch.setattr(marks, "ROOM", 3)
    shop = Shop(world)
    shop.pay(order, "first")
    announce, stops = with_write._announce, [True]

    def announced_and_stopped(*given):
        rows = announce(*given)
        if stops and stops.pop():
            shop.sent(PATIENCE + 0.5)
            for n in range(6):
                shop.store.operate(order, Put("n", n), publish=Publish(n, queue=shop.mails))
        return rows

    monkeypatch.setattr(with_write, "_announce", announced_and_stopped)
    shop.pay(order, "second")
    assert shop.sent()["second"] == 1


def test_the_record_may_be_deleted_once_the_call_has_returned(world, order):
    shop = Shop(world)
    shop.pay(order)
    world.store.delete(order)
    assert shop.sent() == {"paid": 1}


def test_a_record_that_does_not_exist_yet_is_asked_for_until_its_update_comes(world, order):
    shop = Shop(world)
    shop.pay(order, "first")
    shop.sent()
    made = Key(order.set, f"{order.name}-made")
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown):
        shop.pay(made, exists=Exists.ANY)
    assert not shop.sent(PATIENCE + 1.0)
    (waits,) = shop.leader.queue.delayed.waiting().unsettled
    assert waits.record == f"{made} does not exist"
    assert shop.leader.queue.delayed.waits_for(waits.message_id) == f"the update of {made}"
    assert shop.leader.queue.status(waits.message_id).state is State.DELAYED, "looked at, and not on its way"
    shop.store.deliver()
    assert shop.sent(2 * PATIENCE + 1.0) == {"paid": 1}
    assert not shop.leader.queue.delayed.waiting().unsettled


def test_a_message_that_waits_for_ever_can_be_discarded(world, order):
    shop = Shop(world)
    with pytest.raises(NotFound):
        shop.pay(Key(order.set, "nobody"))
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown):
        shop.pay(Key(order.set, "nobody"), exists=Exists.ANY)
    assert not shop.sent(PATIENCE + 1.0)
    (waits,) = shop.leader.queue.delayed.waiting().unsettled
    assert shop.leader.queue.delayed.discard([waits.message_id])[waits.message_id].value == "done"
    assert not shop.leader.queue.delayed.waiting().unsettled, "nobody is told of it any more"


def test_nobody_is_told_any_more_of_a_message_whose_entry_is_gone(world, order):
    shop = Shop(world)
    shop.pay(order, "first")
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown):
        shop.pay(Key(order.set, "nobody"), exists=Exists.ANY)
    shop.sent(PATIENCE + 1.0)
    (waits,) = shop.leader.queue.delayed.waiting().unsettled
    world.store.delete(shop.leader.queue.delayed.entry(waits.message_id))
    shop.sent(2 * PATIENCE + 1.0)
    assert not shop.leader.queue.delayed.waiting().unsettled


def test_a_message_whose_condition_cannot_be_read_waits_and_is_told_of(world, order, caplog):
    """Its update may have been applied: then to drop it would lose it."""
    shop = Shop(world)
    shop.pay(order, "first")
    shop.sent()
    shop.process.fails([2], "crash_after")
    with pytest.raises(Crash):
        shop.pay(order)
    (id,) = (one.message_id for one in shop.leader.queue.delayed.search(within=60))
    entry = shop.leader.queue.delayed.entry(id)
    sound = world.store.get(entry).bins["if"]
    world.store.operate(entry, Put("if", [*sound, "of a later version"]), ttl=-1)
    assert not shop.sent(PATIENCE + 1.0)
    assert "cannot be read" in caplog.text
    assert [one.message_id for one in shop.leader.queue.delayed.waiting().unsettled] == [id]
    world.store.operate(entry, Put("if", sound), ttl=-1)
    assert shop.sent(61) == {"paid": 1}


def test_a_message_under_the_id_of_one_that_was_cancelled_waits_for_no_update(world, order):
    shop = Shop(world)
    shop.pay(order)
    shop.process.fails(range(2, 30), Fault("late"))
    with pytest.raises(OutcomeUnknown) as unknown:
        shop.pay(Key(order.set, "nobody"), exists=Exists.ANY)
    id, queue = unknown.value.details["message_id"], shop.leader.queue
    assert queue.cancel(id).value == "done"
    queue.publish("for itself", delay=0.2, message_id=id)
    assert shop.sent(0.6) == {"paid": 1, "for itself": 1}


@pytest.mark.parametrize("room", [3, 4])
def test_marks_that_have_left_the_record_still_answer(world, order, monkeypatch, room):
    monkeypatch.setattr(marks, "ROOM", room)
    monkeypatch.setattr(entries.ConditionalMessages, "note_applied", lambda self, names: [()] * len(names))
    shop = Shop(world)
    for n in range(9):
        shop.pay(order, n)
    monkeypatch.undo()
    assert len(world.store.get(order).bins[marks.BIN]) <= room
    assert shop.sent() == dict.fromkeys(range(9), 1)


def test_a_mark_that_is_kept_for_longer_still_names_its_attempt(world, order):
    """P28.12: the second attempt at an effect finds it in the second half of its time, and writes the mark again."""
    process = world.process()
    process.queue.publish("order")
    (delivery,) = process.queue.receive()
    effect = marks.Effect(b"t" * 16, "e", 60, attempt=b"a" * 10)
    marks.apply(world.store, Update(order, (Add("n", 1),)), effect)
    found = marks.apply(
        world.store, Update(order, (Add("n", 1),)), marks.Effect(b"t" * 16, "e", DAY, attempt=b"b" * 10)
    )
    assert found.attempt == b"a" * 10
    own = world.store.get(marks.own_record("e", b"t" * 16, marks.BIN, order))
    assert own.bins[marks.EFFECT][1:] == [True, b"a" * 10]
    world.store.delete(own.key)
    assert delivery


def test_what_was_applied_cannot_be_given_up_and_what_was_given_up_cannot_be_applied(world, order):
    condition = Condition(order.set, order.name, marks.BIN, b"t" * 16, b"a" * 10, "e")
    marks.apply(world.store, Update(order, (Add("n", 1),)), marks.Effect(b"t" * 16, "e", DAY, attempt=b"a" * 10))
    assert give_up(world.store, condition, DAY) is True
    other = condition._replace(token=b"u" * 16, attempt=b"c" * 10)
    assert give_up(world.store, other, DAY) is False
    with pytest.raises(marks.GivenUp):
        marks.apply(world.store, Update(order, (Add("n", 1),)), marks.Effect(b"u" * 16, "e", DAY, attempt=b"c" * 10))
    assert world.store.get(order).bins["n"] == 1


# ---- deletes


def test_a_record_is_deleted_with_its_message_by_one_of_several(world, order):
    shop = Shop(world)
    assert shop.store.delete(order, publish=Publish("gone", queue=shop.mails))
    assert shop.process.calls == 4 + FIRST or world.real
    assert not shop.store.delete(order, publish=Publish("gone", queue=shop.mails))
    assert state(world, order) is None
    assert shop.sent(PATIENCE + 0.5) == {"gone": 1}


@pytest.mark.parametrize("call", range(1, 5 + FIRST))
def test_a_process_may_die_at_any_call_of_a_delete(world, order, call):
    shop = Shop(world, {call: "crash_before"})
    assert dies(lambda: shop.store.delete(order, publish=Publish("gone", queue=shop.mails))) or world.real
    sent = shop.sent(PATIENCE + 0.5)
    assert sent == ({"gone": 1} if state(world, order) is None else {})
    assert not shop.sent(PATIENCE)


@pytest.mark.parametrize("call", range(1, 5 + FIRST))
def test_a_delete_that_another_process_has_begun_is_finished_by_it_or_by_the_second_one(world, order, call):
    shop, other = Shop(world, {call: "crash_before"}), Shop(world)
    assert dies(lambda: shop.store.delete(order, publish=Publish("gone", queue=shop.mails))) or world.real
    record = world.store.get(order)
    begun = record is None or END in record.bins
    assert other.store.delete(order, publish=Publish("gone", queue=other.mails)) is not begun
    assert shop.sent(PATIENCE + 0.5) == {"gone": 1}
    assert state(world, order) is None


def test_a_guard_keeps_a_record_and_its_message(world, order):
    shop = Shop(world)
    with pytest.raises(Refused):
        shop.store.delete(order, when=Bin("state", str).eq("paid"), publish=Publish("gone", queue=shop.mails))
    assert not shop.sent(PATIENCE + 0.5)
    assert state(world, order) == "new"


# ---- in a handler, and in Spark


def test_a_delivery_passes_its_message_on_once_however_often_it_is_delivered(world, order):
    shop = Shop(world)
    registry = shop.process.registry
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orders = registry.create(QueueConfig("orders", shards=1, retry=False, unsafe_limits=True))
    orders.publish("order")
    (first,) = orders.receive()
    assert first.operate(order, Add("n", 1), result=Bin("n"), publish=Publish("next", queue="q")) == 1
    first.nack()
    (second,) = orders.sideline.receive()
    assert second.operate(order, Add("n", 1), result=Bin("n"), publish=Publish("next", queue=shop.mails)) == 1
    assert shop.sent(PATIENCE + 0.5) == {"next": 1}
    other = second.operate(order, Add("n", 1), name="b", when=Bin("n") > 5, otherwise="no", publish=Publish("b", "q"))
    assert other == "no"
    assert not shop.sent(PATIENCE + 0.5)
    assert world.store.get(order).bins["n"] == 1


def test_a_batch_of_spark_publishes_once(world, order):
    shop = Shop(world)
    for _ in range(2):  # the second time the driver had died before it noted the end
        block = once_per_batch(shop.store, f"{world.client} {order.name}", 0)
        batch = block.__enter__()
        done = batch.operate(order, Add("n", 1), publish=Publish("batch 0", queue=shop.mails))
    assert done is None
    assert shop.sent(PATIENCE + 0.5) == {"batch 0": 1}
    assert world.store.get(order).bins["n"] == 1


# ---- what is refused before any call


def test_what_cannot_be_done_is_refused_before_any_call(world, order):
    shop = Shop(world)
    mails, before = shop.mails, shop.process.calls
    elsewhere = QueueRegistry(MemoryStore(world.clock), "c").create(QueueConfig("q"))
    for ops, publish, why in (
        ((Read("state"),), Publish("m", queue=mails), "Read with publish"),
        ((Put(marks.BIN, 1),), Publish("m", queue=mails), "name another one by bin="),
        ((Put("a", 1),), Publish("m"), "give what QueueRegistry.get returns"),
        ((Put("a", 1),), Publish("m", queue="mails"), "give what QueueRegistry.get returns"),
        ((Put("a", 1),), Publish("m", queue=elsewhere), "another store"),
        ((Put("a", 1),), Publish(object(), queue=mails), "payload"),
        ((Put("a", 1),), "mails", "give latchwork.queue.Publish"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            shop.store.operate(order, *ops, publish=publish)
    with pytest.raises(InvalidRequest, match="is a group"):
        shop.store.operate(order, Put("a", 1), publish=Publish("m", queue=mails.group("audit")))
    with pytest.raises(RecordTooBig):
        shop.pay(order, "x" * 9_000_000)
    mails.group("audit").drop()
    assert shop.process.calls > before


def test_nothing_was_written_where_the_message_could_not_be_stored(world, order):
    shop = Shop(world)
    shop.pay(order, "first")
    shop.process.fails(range(1, 30), "reply_lost")
    with pytest.raises(Unavailable, match="nothing was written"):
        shop.pay(order, "second")
    shop.store.plan.clear()
    assert shop.sent(PATIENCE + 0.5) == {"first": 1}


# ---- every fault at every call


def _prepare(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = QueueRegistry(store, "shop")
        mails, orders = (
            QueueConfig(name, shards=1, sweep_duration=1, handler_timeout=0.5, unsafe_limits=True)
            for name in ("mails", "orders")
        )
        registry.create(mails)
        registry.create(orders).publish_many(["A-1", "A-2"], message_ids=["A-1", "A-2"])
    store.operate(Key("accounts", "shop"), Put("orders", 0), exists=Exists.ANY)


def _work(store, done):
    """Take a message, change a record, publish the next: one step."""
    for delivery in QueueRegistry(store, "shop").get("orders").receive(10):
        delivery.operate(Key("accounts", "shop"), Add("orders", 1), publish=Publish(delivery.payload, queue="mails"))
        delivery.ack()


def _recover(store, done):
    bring_back(QueueRegistry(store, "shop").get("orders"))
    _work(store, done)
    bring_back(QueueRegistry(store, "shop").get("mails"))


def _each_once(store):
    found = Counter(delivery.payload for delivery in QueueRegistry(store, "shop").get("mails").receive(100))
    assert found == {"A-1": 1, "A-2": 1}, found
    assert store.get(Key("accounts", "shop")).bins["orders"] == 2


@pytest.mark.long
def test_a_handler_that_passes_on_does_so_once_for_every_fault_at_every_call():
    report = inject_everywhere(_work, prepare=_prepare, recover=_recover, check=_each_once)
    assert not report.troubles, report
    assert report.calls >= 8
