"""Fleets of real workers that are killed: delayed messages, schedules and failed messages come, whoever dies.

In full, as in docs/reliability.md: `LATCHWORK_SCALE=100 pytest -s tests/queue/sharded/test_fleet.py -k aerospike`.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from datetime import datetime, timedelta, timezone

import pytest

from latchwork.queue import Schedule
from latchwork.queue.sharded.upkeep import upkeep
from tests.support.scale import TIMES
from tests.support.waiting import until

from .fleet import FAILS, LATER, TICKS, TRIES, Fleet, counted

IS_FULL = TIMES >= 10
LEASE = upkeep.LEASE if IS_FULL else 2.0
"""Of the upkeep's election: what users have, or a tenth of it."""
MESSAGES, SPREAD = min(200_000, 2_000 * TIMES), min(60.0, 3.0 * TIMES)
KILLS_APART = (2.0, 4.0) if IS_FULL else (0.7, 1.4)
REIGN, SECONDS = (20.0, 300.0) if IS_FULL else (2.0, 6.0)
PATIENCE = 300.0


def on(*stores):
    """Each test on the one store here, and on both in full."""
    return pytest.mark.parametrize("url", ["sqlite", "aerospike"] if IS_FULL else stores, indirect=True)


@pytest.fixture
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'fleet.db'}?synchronous=off"
    server = request.getfixturevalue("aerospike_server")
    return f"aerospike://{server.host}:{server.port}/{server.namespace}"


@pytest.fixture
def fleet(url, tmp_path):
    made = Fleet(url, client(), tmp_path, lease=LEASE)
    yield made
    made.end()


def client():
    return f"v{os.getpid()}{time.monotonic_ns() % 10**6}"


@pytest.mark.long
@on("aerospike")
def test_delayed_messages_come_though_workers_are_killed_again_and_again(fleet, url, proved):
    queue, chance = fleet.registry.get(LATER), random.Random(20)
    until(lambda: fleet.leader() is not None, timeout=60)
    begin = time.time() + 5 + MESSAGES / 4_000
    due = {}
    for first in range(0, MESSAGES, 500):
        at = begin + SPREAD * first / MESSAGES
        ids = [f"m{number}" for number in range(first, min(first + 500, MESSAGES))]
        queue.publish_many(ids, message_ids=ids, at=datetime.fromtimestamp(at, timezone.utc))
        due |= dict.fromkeys(ids, max(at, time.time()))
    fleet.watch(begin - time.time())
    while time.time() < begin + SPREAD:
        fleet.watch(chance.uniform(*KILLS_APART))
        fleet.kill(chance.randrange(len(fleet.processes)))
    fleet.watch(1)
    settle(lambda: len(counted(fleet.handled())) == MESSAGES)
    time.sleep(2)  # what comes twice would come now
    handled = fleet.handled()
    first = {one.message: one for one in reversed(handled)}
    late = {message: one.at - due[message] for message, one in first.items()}
    led = {moment: fleet.led_at(moment) for moment in set(due.values())}
    doubles = fleet.doubles(handled)
    told = {
        "messages": MESSAGES, "killed": len(fleet.killed), "leaders killed": len(fleet.leaders),
        "handled twice, in the hands of a killed worker": doubles.killed,
        "handled twice, copied while it was brought back": doubles.copied,
        "while a leader was there": lateness([late[m] for m in late if led[due[m]]]),
        "due between two leaders": lateness([late[m] for m in late if not led[due[m]]]),
        "came again from dead hands": lateness([late[m] for m in late if first[m].attempt > 1]),
    }  # fmt: skip
    print(f"\n{url.partition(':')[0]}: {told}")
    assert set(first) == set(due)
    assert min(late.values()) > -0.1, "none comes early"
    assert not doubles.unexplained
    proved("processes", f"delayed, {url.partition(':')[0]}", killed=len(fleet.killed))


def settle(done):
    """Wait for that; looked at once a second, as it reads the whole log."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(1 if IS_FULL else 0.2)


def lateness(seconds):
    """How many, and the median, the 99th percentile and the worst in seconds."""
    if len(seconds) < 2:
        return (len(seconds),)
    cuts = statistics.quantiles(seconds, n=100)
    return len(seconds), round(cuts[49], 2), round(cuts[98], 2), round(max(seconds), 2)


@pytest.mark.long
@on("sqlite")
def test_a_fleet_whose_leader_is_killed_again_and_again_brings_back_what_failed_and_keeps_each_tick(fleet, url, proved):
    queue = fleet.registry.get(TRIES)
    until(lambda: fleet.leader() is not None, timeout=60)
    fleet.registry.schedule(Schedule("s", queue=TICKS, payload="tick", every=timedelta(seconds=1), missed="all"))
    scheduled = time.time()
    end, published, next_kill = time.time() + SECONDS, [], time.time() + REIGN
    while time.time() < end or not fleet.leaders:
        ids = [f"t{len(published) + n}" for n in range(5)]
        published += queue.publish_many(ids, message_ids=ids)
        time.sleep(0.5)
        if time.time() > next_kill and (place := fleet.leader()) is not None:
            fleet.kill(place)
            next_kill = time.time() + REIGN
    stopped = time.time()

    def ticks():
        return [one for one in fleet.handled() if one.message.startswith("s@")]

    def done():
        enough = counted(one for one in fleet.handled() if one.attempt > FAILS)
        return all(enough[message] for message in published) and max(map(when, ticks()), default=0) >= stopped

    settle(done)
    fleet.registry.unschedule("s")
    time.sleep(2)  # what comes twice would come now
    settled, handled = sorted({when(one) for one in ticks()}), fleet.handled()
    failed = [one for one in handled if one.message.startswith("t")]
    of_ticks, of_failed = fleet.doubles(ticks()), fleet.doubles(failed, tries=FAILS + 1)
    print(
        f"\n{url.partition(':')[0]}: {len(fleet.leaders)} leaders killed in {stopped - scheduled:.0f} s, "
        f"{len(published)} messages failed {FAILS} times each and all came back ({of_failed.killed} once more from "
        f"dead hands, {of_failed.copied} copied), {len(settled)} ticks, {of_ticks.killed + of_ticks.copied} came again "
        "from dead hands"
    )
    assert settled == list(range(settled[0], settled[-1] + 1)), "each tick"
    assert settled[0] <= scheduled + 1
    assert not of_ticks.unexplained
    assert not of_failed.unexplained
    proved("processes", f"upkeep, {url.partition(':')[0]}", killed=len(fleet.killed))


def when(tick):
    """The second of a tick, which is in its message's id."""
    return round(datetime.fromisoformat(tick.message.partition("@")[2]).timestamp())


@pytest.mark.skipif(not IS_FULL, reason="takes two minutes: only with $LATCHWORK_SCALE of 10 or more")
def test_an_idle_fleet_asks_little_of_the_server(aerospike_server, tmp_path):
    """Four workers of three queues each, with the settings that users have, by the server's own count."""
    fleet = Fleet(aerospike_server.url, client(), tmp_path, lease=upkeep.LEASE, quick=False)
    try:
        until(lambda: fleet.leader() is not None, timeout=60)
        time.sleep(30)
        before, began = fleet.served(), time.monotonic()
        time.sleep(60)
        each = (fleet.served() - before) / (time.monotonic() - began)
    finally:
        fleet.end()
    print(f"\nan idle fleet: {each:.2f} calls a second")
    assert each < 200, "a poll each 20 ms of each process would be more"
