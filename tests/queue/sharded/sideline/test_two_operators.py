"""Two operators at once, in processes of their own, who discard, redrive and move the same messages."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import latchwork
from latchwork.queue import QueueConfig, QueueRegistry
from tests.support.scale import SEEDS

ROOT = Path(__file__).parents[4]
MESSAGES = 60


@pytest.fixture(params=["sqlite", "aerospike"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'store.db'}"
    return request.getfixturevalue("aerospike_server").url


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("side", "settings"), [("parked", {"max_deliveries": 1}), ("sideline", {"retry": False})])
def test_each_message_is_acted_on_once_by_one_of_them(url, side, settings, seed):
    client = f"operators{uuid.uuid4().hex[:8]}"
    registry = QueueRegistry(latchwork.connect(url), client)
    queue = registry.create(QueueConfig("q", shards=2, **settings))
    another = registry.create(QueueConfig("another", shards=2))
    queue.publish_many(list(range(MESSAGES)))
    failed = [delivery for _ in range(MESSAGES) for delivery in queue.receive(MESSAGES)]
    for delivery in failed:
        delivery.nack("rejected")
    ids = [delivery.message_id for delivery in failed]
    assert len(getattr(queue, side).search(limit=1000)) == len(ids) == MESSAGES

    done, figures = defaultdict(list), Counter()
    for verb, outcomes in acted(url, client, side, seed, ids):
        for one, outcome in outcomes.items():
            figures[verb, outcome] += 1
            if outcome == "DONE":
                done[one].append(verb)
    left = Counter(message.message_id for message in getattr(queue, side).search(limit=1000))
    came = {
        verb: Counter(d.message_id for _ in range(MESSAGES) for d in place.receive(MESSAGES))
        for verb, place in (("redrive", queue), ("move", another))
    }
    for one in ids:
        verbs = done[one]
        assert len(verbs) <= 1, f"{one}: {verbs}"
        assert left[one] == (not verbs)
        assert {verb: n[one] for verb, n in came.items()} == {verb: int(verbs == [verb]) for verb in came}
    assert not any(outcome == "UNKNOWN" for _, outcome in figures)


def acted(url, client, side, seed, ids):
    """What two operators did, each of them [verb, {id: outcome}]."""
    command = [sys.executable, "-m", "tests.queue.sharded.sideline.operator_process", url, client, side]
    both = [
        subprocess.Popen(
            [*command, str(2 * seed + n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        for n in (0, 1)
    ]
    try:
        for process in both:  # both begin with these
            process.stdin.write("\n".join(ids))
        for process in both:
            process.stdin.close()
        return [one for process in both for one in json.loads(process.stdout.read())]
    finally:
        for process in both:
            process.kill()
            process.wait()
            process.stdout.close()
