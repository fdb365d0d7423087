"""A process of `test_crowd_killed`, killed at any moment: run with a role, a URL, a client, and the name of the log.

A role is "publish", or the reader that it handles messages for: "own" (the queue's own consumers), or a group. Who
handles messages also stands for election, and does the upkeep of the queue and its groups while it leads.
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings

import latchwork
from latchwork import logs
from latchwork.background import FailureLog
from latchwork.coord import LeaseElection
from latchwork.errors import LatchworkError, LeaseLost
from latchwork.queue import Publish, QueueConfig, QueueRegistry, Shovel, ShovelConfig, Sweeper
from latchwork.queue.sharded.publishing import batch_end
from latchwork.queue.sharded.upkeep.ending import Ending
from latchwork.queue.sharded.upkeep.timers import Timers

warnings.simplefilter("ignore")
SWEEP = 2.0
CONFIG = QueueConfig(
    "crowd", shards=3, sweep_duration=SWEEP, handler_timeout=SWEEP / 2, max_deliveries=1000, shovel=ShovelConfig(1),
    unsafe_limits=True, message_expiry=3600, queue_expiry=3600,
)  # fmt: skip
GROUPS = ("a", "b", "c")
BATCHES = 2
"""Open at the same time."""
PERIOD = 4.0
"""Seconds for which a batch is published into; then the next one begins."""
KEYS = 6
"""Deduplication keys a second, each of which every publisher uses again and again for a second."""
UPKEEP = 0.5


def queue_of(url: str, client: str):
    return QueueRegistry(latchwork.connect(url), client, farm_id="f").create(CONFIG)


class Log:
    """Lines that are with the file system before the next step: when, what, who, for whom, payload, id."""

    def __init__(self, path: str) -> None:
        self.file, self.who = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), os.getpid()

    def write(self, word: str, whom: str, messages) -> None:
        now = time.monotonic()
        lines = (f"{now:.4f} {word} {self.who} {whom} {payload} {i}\n" for payload, i in messages)
        os.write(self.file, "".join(lines).encode())


def follow_up(batch: str) -> str:
    """The payload of what follows on it."""
    return f"next:{batch}"


class Publishing:
    """Publishes alone, by deduplication keys that all publishers use, and into batches that all publish into."""

    def __init__(self, queue, log: Log, chance: random.Random) -> None:
        self.queue, self.log, self.chance, self.number = queue, log, chance, 0

    def names(self, n: int) -> list[str]:
        """Payloads that nobody else publishes."""
        self.number += n
        return [f"{self.log.who}.{self.number - one}" for one in range(n)]

    def step(self) -> None:
        time.sleep(0.05)
        self.published("-", self.names(self.chance.choice((1, 5))), self.queue.publish_many)
        now = int(time.monotonic() * KEYS)
        keys = [f"key.{number}" for number in range(now - KEYS, now + 1)]
        self.published("-", keys, self.queue.publish_many, dedups=keys)
        self.into_batches()

    def into_batches(self) -> None:
        """Into those of this time; who comes first makes one, and closes those that are over."""
        current = {f"{place}.{int(time.monotonic() / PERIOD + place / BATCHES)}" for place in range(BATCHES)}
        for over in self.queue.list_batches():
            if over.name not in current:
                over.close()
        for name in sorted(current):
            batch = self.queue.batch(name, then=Publish(follow_up(name)))
            self.log.write("made", name, [("-", "-")])
            now = int(time.monotonic())
            keys = [f"{name}.{number}" for number in range(now - 1, now + 1)]  # again by who comes after one that died
            self.published(name, keys, batch.publish_many, dedups=keys)
            self.published(name, self.names(3), batch.publish_many)

    def published(self, batch: str, payloads, publish, **more) -> None:
        """Publish, and note what is safe. Late: written too late to be sure that nobody had passed its slot (P5)."""
        began, mine = time.monotonic(), [f"id.{name}" for name in self.names(len(payloads))]
        self.log.write("publishing", batch, zip(payloads, mine, strict=True))
        try:
            ids = publish(payloads, message_ids=mine, **more)
        except LatchworkError:
            self.log.write("unsafe", batch, zip(payloads, mine, strict=True))
            return
        word = "published" if time.monotonic() - began < SWEEP / 2 else "late"
        self.log.write(word, batch, zip(payloads, ids, strict=True))


class Handling:
    """Handles messages: some fail, some are acknowledged one by one, others together.

    began: what it has, it has not had before.
    """

    def __init__(self, view, whom: str, log: Log, chance: random.Random) -> None:
        self.view, self.whom, self.log, self.chance = view, whom, log, chance
        self.began = 0.0

    def step(self) -> None:
        if not self.view.awaits():  # else the next message may be one that it waits for since then
            self.began = time.monotonic()
        found = self.view.receive(20, timeout=0.2)
        self.note("handled", found)
        time.sleep(0.03)  # the work, in the middle of which it may be killed
        failed = [one for one in found if self.chance.random() < 0.01]
        for one in failed:
            self.settled([one], one.nack, "failing", "failed")
        left = [one for one in found if one not in failed]
        if self.chance.random() < 0.8:
            self.settled(left, lambda: self.view.ack_many(left), "settling", "acked")
        else:
            for one in left:
                self.settled([one], one.ack, "settling", "acked")

    def settled(self, some, settle, before: str, after: str) -> None:
        """Settle these, and note what became of each.

        slow: acknowledged, though it was had for so long that a sweep may have moved it.
        doubled: failed, and stored for later, but perhaps not removed here: both may come. Who has it for half a sweep
            duration asks before it stores anything, so one that was lost is not stored if that did not take long.
        """
        self.note(before, some)
        asked, lost, word = time.monotonic(), [], after
        try:
            settle()
        except LeaseLost as failure:
            lost = failure.details["message_ids"]
        except LatchworkError:
            word = "unknown" if after == "acked" else "doubled"
        now = time.monotonic()
        had = now - self.began
        if word == "acked" and had >= SWEEP:
            word = "slow"
        taken = "lost" if had >= SWEEP else f"taken_after_{had:.3f}_s"
        if taken == "lost" and after == "failed" and now - asked >= SWEEP / 2:
            taken = "doubled"
        self.note(word, [one for one in some if one.message_id not in lost])
        self.note(taken, [one for one in some if one.message_id in lost])

    def note(self, word: str, some) -> None:
        self.log.write(word, self.whom, [(one.payload, one.message_id) for one in some])


class Farm:
    """What a leader knows of: the queue and its groups."""

    def __init__(self, registry) -> None:
        self.registry = registry

    def queues(self):
        return self.registry.queues(active=None)

    def failure_log(self):
        return FailureLog(self.registry.store.seams, logs.Log(__name__))


def noted(follow, log: Log):
    """Return what publishes the follow-up of a batch, with a note before and another after it."""

    def noting(home, state, then, **more) -> None:
        payloads = [(follow_up(state.name), "-")]
        log.write("following", state.name, payloads)
        follow(home, state, then, **more)
        log.write("followed", state.name, payloads)

    return noting


def lead(registry, election, log: Log):
    """The upkeep of the queue and its groups, while this process leads."""
    sweeper, farm = Sweeper(registry, election, parallelism=1), Farm(registry)
    ending, timers = Ending(farm), Timers(farm)

    def duties(leadership) -> None:
        while not leadership.lost.is_set():
            try:
                log.write("moving", "-", [("-", "-")])
                ending.run(leadership)
                timers.run(leadership)
                sweeper.run_once()
                for queue in farm.queues():
                    Shovel(queue).run_once()
            except LatchworkError:
                pass
            finally:
                log.write("moved", "-", [("-", "-")])
            leadership.lost.wait(UPKEEP)

    return duties


def main(role: str, url: str, client: str, path: str) -> None:
    log, queue = Log(path), queue_of(url, client)
    chance = random.Random(log.who)
    batch_end.follow = noted(batch_end.follow, log)
    if role == "publish":
        work = Publishing(queue, log, chance)
    else:
        work = Handling(queue if role == "own" else queue.group(role), role, log, chance)
        election = LeaseElection(queue.store, f"{client}-upkeep", lease=1.0)
        election.start(lead(queue.registry, election, log))
    while True:
        try:
            work.step()
        except LatchworkError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
