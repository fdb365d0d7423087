"""One message in any state over two stores, and against a list of where each is."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from latchwork.errors import Cancelled, HandlerFailed, NotFound, WaitTimeout
from latchwork.queue import Outcome, QueueConfig, QueueRegistry, State
from latchwork.queue.sharded.upkeep.timers import Timers

from .test_delayed import Own, Term
from .twins import Server, Twins, came_to, time_passes

picks = st.integers(0, 7)
OVER = (State.DONE, State.GONE, State.UNKNOWN)
RESULTS = {
    State.GONE: (Cancelled, NotFound), State.UNKNOWN: (NotFound,), State.PARKED: (HandlerFailed,),
    **dict.fromkeys((State.READY, State.RUNNING, State.DELAYED, State.RETRYING), (WaitTimeout,)),
}  # fmt: skip
WAITS = (State.READY, State.DELAYED, State.RETRYING, State.PARKED)


class OneMessage(Twins):
    """One queue; `state` has where each message is, `held` what consumers have, `asked` whom a cancel has reached."""

    def start(self):
        self.state: dict[str, State] = {"nobody": State.UNKNOWN}
        self.held: dict[str, tuple] = {}
        self.asked: set[str] = set()
        self.told: dict[str, float] = {}

    @initialize(shards=st.integers(1, 3))
    def make(self, shards):
        config = QueueConfig("q", shards=shards, max_deliveries=2, backoff=10, results=86_400)
        self.queue = self.both(lambda store: QueueRegistry(store, "c", farm_id="f").create(config), self.stores)

    @rule(given=st.booleans(), delay=st.sampled_from((None, None, 5)), n=st.integers(1, 3))
    def publish(self, given, delay, n):
        ids = [f"m{len(self.state)}-{place}" for place in range(n)] if given else None
        made = self.both(lambda queue: queue.publish_many([0] * n, message_ids=ids, delay=delay), self.queue)
        assert made[0] == made[1]
        self.state |= dict.fromkeys(came_to(made), State.DELAYED if delay else State.READY)

    @rule(n=st.integers(1, 3))
    def receive(self, n):
        for pair in zip(*self.both(lambda queue: queue.receive(n), self.queue), strict=True):
            of = pair[0].message_id
            assert self.state[of] is State.READY
            assert of not in self.asked, "one that was cancelled is not handed out again"
            self.state[of], self.held[of] = State.RUNNING, pair
            self.told.pop(of, None)

    @rule(pick=picks, how=st.sampled_from(("ack", "nack", "back", "extend")), part=st.sampled_from((0.0, 0.25, 1.0)))
    def settle(self, pick, how, part):
        if not self.held:
            return
        of = sorted(self.held)[pick % len(self.held)]
        pair = self.held[of]
        if how == "extend":
            self.both(lambda one: one.progress(part), pair)
            self.both(lambda one: one.extend(), pair)
            self.told[of] = part
            checked = came_to(self.both(lambda one: one.check(), pair))
            assert (checked is Cancelled) == (of in self.asked)
            return
        del self.held[of]
        last = pair[0].attempts == 2
        after = State.GONE if of in self.asked else State.PARKED if last else State.RETRYING
        if how == "ack":
            self.both(lambda one: one.ack(of), pair)
            after = State.DONE  # also where it was asked to stop: its result says so
        elif how == "nack":
            self.both(lambda one: one.nack(), pair)
        else:
            self.both(lambda queue, one: queue.give_back([one]), self.queue, pair)
            after = State.READY
        self.state[of] = after
        if after is State.READY and of in self.asked:
            del self.state[of]  # it goes as a consumer comes to it

    @time_passes
    @rule()
    def come_due(self):
        for clock in self.clocks:
            clock.advance(30)
        self.both(lambda queue: Timers(Own(queue)).run(Term()) >= 0, self.queue)
        for of, state in self.state.items():
            if state in (State.DELAYED, State.RETRYING):
                self.state[of] = State.READY

    @rule(pick=picks)
    def cancel(self, pick):
        of = self._picked(pick)
        state = self.state[of]
        outcome = came_to(self.both(lambda queue: queue.cancel(of), self.queue))
        if state is State.RUNNING:
            assert outcome is Outcome.ASKED
            self.asked.add(of)
        else:
            assert outcome is (Outcome.DONE if state in WAITS else Outcome.NOT_THERE)
            self.state[of] = State.GONE if state in WAITS else state

    @rule(pick=picks)
    def status(self, pick):
        of = self._picked(pick)
        found = came_to(self.both(lambda queue: queue.status(of), self.queue))
        expected = self.state[of]
        unsaid = expected in OVER and of.startswith("m")  # an id of its publisher's, that leaves no record
        assert found.state is expected or (unsaid and found.state is State.UNKNOWN)
        if found.state is State.RUNNING:
            assert found.progress == self.told.get(of)
            assert found.cancelled == (of in self.asked)

    @rule(pick=picks)
    def result(self, pick):
        of = self._picked(pick)
        found = came_to(self.both(lambda queue: queue.result(of, 0), self.queue))
        assert found in RESULTS.get(self.state[of], (of,))

    def _picked(self, pick):
        known = sorted(self.state)
        return known[-1 - pick % len(known)]


def test_a_message_is_found_and_cancelled_in_any_state_alike_over_both_stores(agree):
    agree(OneMessage, "one_message")


def test_a_delayed_message_is_found_alike_though_two_clocks_say_when_it_is_due(aerospike_store):
    machine = OneMessage(Server(aerospike_store))
    machine.make(shards=1)
    machine.publish(given=False, delay=5, n=1)
    machine.the_records_are_the_same()
    machine.status(pick=1)
    machine.the_records_are_the_same()
    machine.teardown()
