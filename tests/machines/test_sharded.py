"""A sharded queue with its sideline, parked messages, sweeper, shovel and registry over two stores.

The model is what is owed: until it is acknowledged or has expired, every published message is in the queue, in the
sideline, parked, among the delayed ones for its next attempt, or held by a consumer.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from latchwork.errors import AlreadyExists, NotFound, Refused
from latchwork.queue import QueueConfig, QueueRegistry, Reason, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.retry import Poll
from tests.queue.sharded.delayed.test_delayed import Term
from tests.queue.sharded.world import Election

from .twins import Twins, came_to, failed

CLIENT = f"m{os.getpid()}"
SWEEP, EXPIRY = 300.0, 2_000.0
picks = st.integers(0, 5)
sizes = st.integers(1, 4)
SIDES = ("main", "sideline", "parked")
reasons = st.sampled_from([reason.value for reason in Reason] * 2 + ["nonsense"])


@dataclass
class InHand:
    """A delivery on both sides."""

    twins: tuple
    message_id: str


def view_of(queue, side: str):
    return queue if side == "main" else getattr(queue, side)


class ShardedQueues(Twins):
    """One queue and two processes that use it, each with a registry of its own."""

    def start(self):
        self.owed: dict[str, float] = {}
        self.hands: list[InHand] = []
        self.epoch = 1

    @initialize(
        shards=st.integers(1, 3), max_deliveries=st.integers(1, 3), backoff=st.none() | st.just(Poll(0.2, 5.0, 2.0)),
        shovel=st.none() | st.just(ShovelConfig(60)), retry=st.booleans(), messages=sizes, received=st.integers(0, 3),
    )  # fmt: skip
    def make(self, *, shards, max_deliveries, backoff, shovel, retry, messages, received):
        # The records of a message that is tried again are named by the time of its server: two clocks, two names.
        stays = {"retry": False} if shovel is None and not (retry and self.movable) else {}
        self.config = QueueConfig(
            "q", shards=shards, max_deliveries=max_deliveries, backoff=backoff, shovel=shovel, **stays,
            sweep_duration=SWEEP, message_expiry=EXPIRY, queue_expiry=2 * EXPIRY,
        )  # fmt: skip
        self.registries = [
            self.both(lambda store: QueueRegistry(store, CLIENT, farm_id="f"), self.stores) for _ in range(2)
        ]
        self.queues = [
            self.both(lambda registry: registry.create(self.config), registries) for registries in self.registries
        ]

        self.publish(which=False, n=messages, key=None, headers=False)
        if received:
            self.receive(which=True, pick=0, n=received)

    def filled(self) -> list[str]:
        """The sides that have something to be received."""
        return [side for side in SIDES if any(at.fired < at.loaded for at in self.view(side).pointers.states())]

    def view(self, side: str):
        return view_of(self.queues[0][0], side)

    def lasts(self, message_id: str) -> None:
        self.owed[message_id] = self.now + EXPIRY - 1

    # ---- publishing and receiving

    @rule(which=st.booleans(), n=sizes, key=st.none() | st.sampled_from("kl"), headers=st.booleans())
    def publish(self, which, n, key, headers):
        payloads = [f"p{len(self.owed)}-{place}" for place in range(n)]
        answers = self.both(
            lambda queue: queue.publish_many(payloads, key=key, headers={"h": "1"} if headers else None),
            self.queues[which],
        )
        if came_to(answers) is not Refused:
            assert len(set(came_to(answers))) == n
            for message_id in came_to(answers):
                self.lasts(message_id)

    @precondition(lambda self: self.filled())
    @rule(which=st.booleans(), pick=picks, n=sizes)
    def receive(self, which, pick, n):
        filled = self.filled()
        side = filled[pick % len(filled)]
        answers = self.both(lambda queue: view_of(queue, side).receive(n), self.queues[which])
        got = came_to(answers)
        assert len(got) <= n
        assert not (side == "main" and got and self.queues[which][0].concurrency == 0)
        self.hands += [InHand(twins, twins[0].message_id) for twins in zip(*answers, strict=True)]
        for delivery in got:
            assert delivery.message_id in self.owed, "an acknowledged message came again"

    # ---- settling

    def picked(self, pick) -> InHand:
        return self.hands[pick % len(self.hands)]

    @precondition(lambda self: self.hands)
    @rule(pick=picks)
    def acknowledge(self, pick):
        held = self.picked(pick)
        self.hands.remove(held)
        if not failed(self.both(lambda delivery: delivery.ack(), held.twins)):
            self.settled(held)

    @precondition(lambda self: self.hands)
    @rule(which=st.booleans())
    def acknowledge_all(self, which):
        """The newest delivery of each message, in one call; where some are refused, the others are done."""
        newest = list({held.message_id: held for held in self.hands}.values())
        self.hands = []
        answers = self.both(
            lambda queue, *deliveries: queue.ack_many(deliveries), self.queues[which], *(one.twins for one in newest)
        )
        lost = answers[0].details["message_ids"] if failed(answers) else []
        for held in newest:
            if held.message_id not in lost:
                self.settled(held)

    def settled(self, held: InHand) -> None:
        """It was acknowledged; another copy of it may be left, where it had failed or was swept in vain."""
        if held.message_id not in self.kept():
            self.owed.pop(held.message_id, None)

    @precondition(lambda self: self.hands)
    @rule(pick=picks, reason=reasons, error=st.none() | st.just("boom"))
    def fail(self, pick, reason, error):
        held = self.picked(pick)
        answers = self.both(lambda delivery: delivery.nack(reason, error=error), held.twins)
        if not failed(answers):
            self.hands.remove(held)
            self.lasts(held.message_id)

    @precondition(lambda self: self.hands)
    @rule(pick=picks)
    def extend(self, pick):
        self.both(lambda delivery: delivery.extend(), self.picked(pick).twins)

    # ---- the safety net

    @rule(which=st.booleans(), anew=st.booleans())
    def sweep(self, which, anew):
        self.epoch += anew
        report = self.both(
            lambda registry: Sweeper(registry, Election(self.epoch), parallelism=1).run_once(), self.registries[which]
        )
        assert came_to(report).ok

    @precondition(lambda self: self.movable and self.hands)
    @rule()
    def sweep_what_was_left_alone(self):
        sweepers = self.both(
            lambda registry: Sweeper(registry, Election(self.epoch), parallelism=1), self.registries[0]
        )
        for _ in range(2):
            assert came_to(self.both(lambda sweeper: sweeper.run_once(), sweepers)).ok
            for clock in self.clocks:
                clock.advance(SWEEP + 1)
        assert came_to(self.both(lambda sweeper: sweeper.run_once(), sweepers)).ok

    @precondition(lambda self: "sideline" in self.filled())
    @rule(which=st.booleans())
    def shovel(self, which):
        report = self.both(lambda queue: Shovel(queue).run_once(), self.queues[which])
        assert came_to(report).errors == ()

    @precondition(lambda self: self.config.retries is not None)
    @rule(which=st.booleans())
    def try_again(self, which):
        """What has failed comes back once it is due."""
        came = came_to(self.both(lambda queue: QueueTimers(queue).run(Term()), self.queues[which]))
        assert came is NotFound or came >= 0, "nothing has failed yet"

    @precondition(lambda self: "parked" in self.filled())
    @rule(which=st.booleans(), limit=sizes, reason=st.none() | reasons, dry=st.booleans())
    def redrive(self, which, limit, reason, dry):
        self.both(lambda queue: queue.redrive(limit, reason=reason, dry_run=dry), self.queues[which])

    # ---- the registry

    @rule(
        which=st.booleans(),
        what=st.sampled_from(("scale", "pause", "list", "refresh", "deactivate", "activate", "make again")),
    )
    def administer(self, which, what):
        {
            "scale": self.scale, "pause": self.pause_or_resume, "list": self.list, "refresh": self.refresh,
            "deactivate": self.deactivate, "activate": self.activate, "make again": self.make_again,
        }[what](which)  # fmt: skip

    def scale(self, which):
        self.both(lambda queue: queue.scale(3), self.queues[which])
        assert self.queues[which][0].concurrency == 3

    def pause_or_resume(self, which):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.both(lambda queue: queue.resume() if queue.concurrency == 0 else queue.pause(), self.queues[which])

    def list(self, which):
        self.both(lambda registry: [queue.name for queue in registry.queues(active=None)], self.registries[which])
        assert not failed(self.both(lambda registry: registry.last_sweep("q"), self.registries[which]))
        assert came_to(self.both(lambda registry: registry.get("none"), self.registries[which])) is NotFound

    def refresh(self, which):
        assert not failed(self.both(lambda registry: registry.refresh(), self.registries[which]))

    def deactivate(self, which):
        assert not failed(self.both(lambda registry: registry.deactivate("q"), self.registries[which]))

    def activate(self, which):
        assert not failed(self.both(lambda registry: registry.activate("q"), self.registries[which]))

    def make_again(self, which):
        self.queues[which] = self.both(lambda registry: registry.create(self.config), self.registries[which])
        other = QueueConfig("q", retry=False, shards=self.config.shards + 1)
        assert came_to(self.both(lambda registry: registry.create(other), self.registries[which])) is AlreadyExists

    # ---- looking

    @rule(which=st.booleans())
    def look(self, which):
        depth = came_to(self.both(lambda queue: queue.depth(), self.queues[which]))
        unread = depth.loaded - depth.fired
        assert unread - depth.expired <= depth.ready <= unread, "what has expired unread is not ready"
        for side in ("main", "sideline", "parked"):
            self.both(lambda queue, side=side: view_of(queue, side).peek(3), self.queues[which])

    def kept(self) -> set[str]:
        """The messages that there are records of, wherever."""
        memory = self.stores[0]
        keys = [key for key in memory._records if key.set.endswith(("data_set", "delay_set"))]
        found = [record.bins for record in memory.get_many(keys, "msgId", "data") if record] if keys else []
        return {bins["msgId"] for bins in found if "data" in bins and "msgId" in bins}

    @invariant()
    def nothing_that_is_owed_is_lost(self):
        owed = {message_id for message_id, until in self.owed.items() if self.now < until}
        assert owed <= self.kept()


def test_sharded_queues_are_alike_over_both_stores_and_lose_nothing(agree):
    agree(ShardedQueues, "sharded queues")
