"""An older version's processes and today's work on one store at the same time, whoever made what is there; on a SQLite
file one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork
from latchwork.coord import CountDownLatch
from latchwork.queue import QueueRegistry
from latchwork.store import Key
from latchwork.store.sqlite.file import LAYOUT
from tests.support.project import ROOT
from tests.support.waiting import until

from .side import MESSAGES, TOGETHER
from .snapshot import extracted

SIDE = Path(__file__).parent / "side.py"
PATIENCE = 120


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    return extracted(tmp_path_factory.mktemp("older"))


@pytest.fixture
def url(request):
    request.getfixturevalue("aerospike_store")  # which is emptied afterwards
    return request.getfixturevalue("aerospike_server").url


class Sides:
    """The processes of both versions; none of them outlives the block."""

    def __init__(self, older, url, client):
        self._paths, self._url, self._client, self._all = {"old": older, "new": None}, url, client, []

    def start(self, role, side):
        environment = {**os.environ, "PYTHONPATH": str(self._paths[side] or "")}
        process = subprocess.Popen(
            [sys.executable, SIDE, role, side, self._url, self._client], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment, cwd="/",
        )  # fmt: skip
        self._all.append(process)
        return process

    def done(self, process):
        """What the process printed; it ran the version that it was to run."""
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        where = Path(err.splitlines()[-1]).resolve()
        assert where.is_relative_to(ROOT) == (process.args[3] == "new"), where
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._all:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_file_of_an_older_version_is_read_and_from_then_on_that_version_refuses_it_and_says_so(older, tmp_path):
    url = f"sqlite:{tmp_path}/store.db?synchronous=off"
    with Sides(older, url, "up") as sides:
        sides.done(sides.start("make", "old"))
        store = latchwork.connect(url)
        queue = QueueRegistry(store, "up").get("q")
        queue.publish("m", key="k")
        assert queue.depth().ready == 1
        late = sides.start("publish", "old")
        _, said = late.communicate(timeout=PATIENCE)
        assert late.returncode != 0
        assert f"has layout {LAYOUT}, this version reads" in said
        store.close()


@pytest.mark.long
@pytest.mark.parametrize("first", ["old", pytest.param("new", marks=pytest.mark.long)])
def test_nothing_is_lost_between_two_versions_that_publish_and_work_side_by_side(older, url, first):
    client = f"up-{first}"
    with Sides(older, url, client) as sides:
        sides.done(sides.start("make", first))
        store = latchwork.connect(url)
        queue = QueueRegistry(store, client).get("q")
        workers = [sides.start("work", side) for side in ("old", "new")]
        assert CountDownLatch.get(store, client, "ready").wait(PATIENCE), "both versions count one latch down"
        publishers = [sides.start("publish", side) for side in ("old", "new")]
        ids = [json.loads(sides.done(publisher)) for publisher in publishers]
        assert ids[0] == ids[1], "what both publish under one key is one message"

        numbers = [*range(2 * MESSAGES), *range(1000, 1000 + TOGETHER)]
        keys = [Key("tests", f"{client}-{number}{of}") for number in numbers for of in ("", "-audit")]
        until(lambda: all(store.get_many(keys)), PATIENCE)  # the group has each message too
        batch = queue.batch("run")
        batch.close()
        assert batch.wait(PATIENCE), f"both versions count the messages of one batch: {batch.progress()}"
        for worker in workers:
            worker.terminate()
            sides.done(worker)
        counts = [record.bins for record in store.get_many(keys)]
        assert {side for count in counts for side in count} == {"old", "new"}, "both have worked"
        twice = [f"{key.name} {count}" for key, count in zip(keys, counts, strict=True) if sum(count.values()) > 1]
        assert len(twice) < 5, "no message is handed to both, but where a store call failed"
        locked = store.get(Key("tests", f"{client}-locked")).bins
        assert locked["n"] >= len([number for number in numbers if number % 25 == 0])
        depth = queue.depth()
        assert (depth.ready, depth.sideline, depth.parked, depth.delayed, depth.damaged) == (0, 0, 0, 0, 0)
        store.close()
