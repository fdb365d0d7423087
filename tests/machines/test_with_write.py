"""Messages that go with writes over two stores: their process dies at any call, and both are there, or neither."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from latchwork.coord.effects import marks
from latchwork.errors import NotFound, OutcomeUnknown, Refused
from latchwork.queue import Publish, QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed import conditional as announced
from latchwork.queue.sharded.upkeep import conditions
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.store import Add, Bin, Exists, Key, ListAppend, Put, Update
from latchwork.testing.stores import Crash

from .processes import CRASHED, STRUCK, Client, calm, strike
from .test_delayed import Term
from .twins import Twins, came_to

ACCOUNTS = [Key("writes", name) for name in "ab"]
FULL = 3
"""Writes from when on a guard refuses others."""
BELOW = Bin("n") < FULL
ROOM = 4
AT_ONCE = ((announced, "SOON", -1_000), (announced, "LEAST", -60_000), (conditions, "PATIENCE", 0))
"""Where time cannot be moved: each message is due when it is stored, and no writer is waited for."""
accounts = st.sampled_from(ACCOUNTS)
guards = st.sampled_from((None, BELOW))


class Writes(Twins):
    """Two records, a process that dies now and then, and the leader of the upkeep.

    `applied` has the writes that the records say were made, and the ends of records that have gone: each has one
    message, which is in `came` once the leader has looked for it long enough.
    """

    def start(self):
        self.stack = ExitStack()
        for owner, name, value in () if self.movable else AT_ONCE:
            self.stack.enter_context(mock.patch.object(owner, name, value))
        self.clients = self.both(Client, self.stores)
        self.lives = dict.fromkeys(ACCOUNTS, 0)
        self.there: set[Key] = set()
        self.wounded: dict[Key, str] = {}
        self.applied: set[str] = set()
        self.came: Counter[str] = Counter()
        self.published = 0

    @initialize()
    def make(self):
        self.mails = self.both(self.queue_on, self.clients)
        self.others = self.both(self.queue_on, self.stores)
        self.leaders = self.both(QueueTimers, self.others)
        for account in ACCOUNTS:
            self.make_again(account)

    @staticmethod
    def queue_on(store):
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1))

    @rule(place=st.integers(1, 6), fault=st.sampled_from((*STRUCK, "crash_before", "crash_after")))
    def go_wrong(self, place, fault):
        strike(self.clients, place, fault)

    @precondition(lambda self: len(self.there) < len(ACCOUNTS))
    @rule(account=accounts)
    def make_again(self, account):
        if account not in self.there:
            self.both(lambda store: store.operate(account, Put("n", 0), exists=Exists.ANY), self.stores)
            self.there.add(account)
            self.lives[account] += 1

    @rule(account=accounts, guard=guards)
    def write(self, account, guard):
        if self.wounded.get(account) == "end":
            return  # what is written to a record that ends is deleted with it
        name = self.named()
        before = self.counted(account)
        came = self.asked(
            lambda store, mails: store.operate(
                account, Add("n", 1), ListAppend("log", name), when=guard, publish=Publish(name, queue=mails)
            )
        )
        if came == CRASHED:
            self.wounded[account] = "write"
        elif account not in self.there:
            assert came is NotFound
        elif guard is not None and before >= FULL:
            assert came is Refused
        else:
            assert self.counted(account) == before + 1, came

    @rule(guard=guards)
    def write_both(self, guard):
        if "end" in self.wounded.values():
            return
        names = [self.named() for _ in ACCOUNTS]
        updates = [
            Update(account, (Add("n", 1), ListAppend("log", name)), guard)
            for account, name in zip(ACCOUNTS, names, strict=True)
        ]
        came = self.asked(
            lambda store, mails: store.operate_many(updates, publish=[Publish(name, queue=mails) for name in names])
        )
        if came == CRASHED:
            self.wounded = dict.fromkeys(ACCOUNTS, "write")

    @rule(account=accounts)
    def delete(self, account):
        if account in self.wounded:
            return  # the record cannot tell of a write any more that nobody has noted: not promised
        was, payload = account in self.there, self.end_of(account)
        came = self.asked(lambda store, mails: store.delete(account, publish=Publish(payload, queue=mails)))
        if came == CRASHED:
            self.wounded[account] = "end"
        else:
            # Of a record that is not there, nobody can tell whether a request in doubt has ended it.
            assert came == was or (came is OutcomeUnknown and not was)
            assert self.both(lambda store: store.get(account), self.stores)[0] is None

    def asked(self, call):
        """What it came to; a process that has died is another one from then on."""

        def attempt(store, mails):
            try:
                return call(store, mails)
            except Crash:
                store.revive()
                return CRASHED

        answers = self.both(attempt, self.clients, self.mails)
        calm(self.clients)
        self.look()
        return came_to(answers)

    def named(self):
        self.published += 1
        return f"w{self.published}"

    def end_of(self, account):
        return f"end {account.name} {self.lives[account]}"

    def counted(self, account):
        record = self.stores[0].get(account)
        return record.bins["n"] if record else 0

    def look(self):
        """See what the records say."""
        for account in sorted(self.there, key=str):
            record = self.stores[0].get(account, "log")
            if record is None:
                self.there.discard(account)
                self.applied.add(self.end_of(account))
            else:
                self.applied.update(record.bins.get("log") or [])

    @rule(seconds=st.sampled_from((0.3, 2.0, 12.0)))
    def move(self, seconds):
        for clock in self.clocks if self.movable else ():
            clock.advance(seconds)
        self.both(lambda leader: leader.run(Term()) >= 0, self.leaders)
        self.look()
        self.receive()

    def receive(self):
        def received(queue):
            found = queue.receive(100)
            for delivery in found:
                delivery.ack()
            return [delivery.payload for delivery in found]

        self.came.update(self.both(received, self.others)[0])

    @rule()
    def wait_until_all_is_settled(self):
        for _ in range(3):
            self.move(2 * conditions.PATIENCE / 1000 + 1)
        self.wounded.clear()
        assert self.came == Counter(dict.fromkeys(self.applied, 1))

    @invariant()
    def none_comes_without_its_write_or_twice(self):
        assert self.came.keys() <= self.applied
        assert all(times == 1 for times in self.came.values())

    def teardown(self):
        self.stack.close()
        super().teardown()

    @invariant()
    def the_records_are_the_same(self):
        if self.movable:  # else the buckets are those of two clocks
            super().the_records_are_the_same()


def test_a_write_and_its_message_are_both_there_or_neither_over_both_stores(agree):
    with mock.patch.object(marks, "ROOM", ROOM):
        agree(Writes, "writes")
