"""Messages that go with writes (P28): what others do between their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from unittest import mock

from latchwork.coord.effects import marks
from latchwork.errors import OutcomeUnknown
from latchwork.queue import Publish, QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed import conditional
from latchwork.queue.sharded.delayed.stored import horizon_in
from latchwork.queue.sharded.delivery import Delivery
from latchwork.queue.sharded.publishing import with_write
from latchwork.queue.sharded.upkeep.conditions import PATIENCE
from latchwork.store import Add, Exists, Key, MemoryStore
from latchwork.testing.clock import ManualClock

from .common import patched, rule
from .later import behind_the_time_of_the_leader, delivered, queue_on, run

ACCOUNT = Key("sim", "account")
HOUR = 3_600
GIVE_UP = PATIENCE / 1000 + 5


def _shop():
    """A clock, a store with an account, and a queue."""
    clock = ManualClock()
    store = MemoryStore(clock)
    store.operate(ACCOUNT, Add("n", 0), exists=Exists.ANY)
    return clock, store, queue_on(store)


def _pay(store, mails, name):
    store.operate(ACCOUNT, Add("n", 1), publish=Publish(name, queue=mails))


def _pay_on(queue, name):
    queue.store.operate(ACCOUNT, Add("n", 1), exists=Exists.ANY, publish=Publish(name, queue=queue))


def _in_between(name: str, act: Callable[[], object]):
    """Once, after this step of a write, this happens."""
    real, acts = getattr(with_write, name), [act]

    def step(*given):
        done = real(*given)
        if acts:
            acts.pop()()
        return done

    return mock.patch.object(with_write, name, step)


def _each_write_came(clock, store, mails):
    run(mails, clock, 60)
    found = Counter(delivered(mails))
    return len(found) == sum(found.values()) == store.get(ACCOUNT).bins["n"]


def given_up_and_its_mark_has_left():
    """P28.6: a writer is stopped between its steps. The leader gives it up, and other writes of this process push that
    mark out of the record, so that the process knows another generation than before.
    """
    clock, store, mails = _shop()

    def others():
        clock.advance(GIVE_UP)
        run(mails, clock, GIVE_UP)
        for number in range(marks.ROOM - 1):
            _pay(store, mails, f"other {number}")

    with mock.patch.object(marks, "ROOM", 6):
        _pay(store, mails, "first")
        with _in_between("_announce", others):
            _pay(store, mails, "stopped")
        return _each_write_came(clock, store, mails)


def kept_for_longer():
    """P28.12: a handler dies after its update. The message comes again when more than half of the mark's time is over,
    so the mark is written again; then it leaves the record, before the leader asks.
    """
    clock, store, _ = _shop()
    registry = QueueRegistry(store, "c", farm_id="f")
    orders, mails = (registry.create(QueueConfig(name, shards=1, message_expiry=HOUR)) for name in ("orders", "mails"))
    mails.delayed.kept = HOUR
    orders.publish("order")
    (first,) = orders.receive()

    def handle(delivery):
        delivery.operate(ACCOUNT, Add("n", 1), keep=HOUR, publish=Publish("mail", queue=mails))

    with mock.patch.object(marks, "ROOM", 4):
        with mock.patch.object(with_write, "_note", lambda _, some: [()] * len(some)):
            handle(first)
        clock.advance(0.6 * HOUR)
        handle(Delivery(first.payload, first.held, first.view, store.seams.monotonic()))
        for number in range(marks.ROOM):
            _pay(store, mails, f"other {number}")
        return _each_write_came(clock, store, mails)


class Stopped(Exception):
    """Here a process dies."""


def ended_by_another():
    """P28.14: a record is ended, and its process stopped. The leader deletes it; it is made again, and ended by another
    process, which dies. The first one goes on.
    """
    clock, store, mails = _shop()

    def dies(*given):
        raise Stopped

    def others():
        run(mails, clock, 5)
        store.operate(ACCOUNT, Add("n", 0), exists=Exists.ANY)
        with mock.patch.object(with_write, "_note", dies), suppress(Stopped):
            store.delete(ACCOUNT, publish=Publish("second", queue=mails))

    with _in_between("_note", others), suppress(OutcomeUnknown):
        store.delete(ACCOUNT, publish=Publish("first", queue=mails))
    run(mails, clock, 60)
    return store.get(ACCOUNT) is None and sorted(delivered(mails)) == ["first", "second"]


RULES = [
    ("P28.6 known before", given_up_and_its_mark_has_left, rule("writes", "the generation is that of after its name")),
    (
        "P28.10 by the leader's time",
        partial(behind_the_time_of_the_leader, _pay_on),
        patched(conditional, "may_have_passed", horizon_in),
    ),
    ("P28.12 its attempt", kept_for_longer, rule("writes", "a mark that is written again forgets its attempt")),
    ("P28.14 only who ended it", ended_by_another, rule("writes", "anybody deletes a record that is ended")),
]
