"""A Spark latch without Spark: its names, what it says is missing, what it refuses. A context plays the task."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pyspark
import pytest

from latchwork.coord import CountDownLatch, LatchLevel
from latchwork.errors import AlreadyExists, InvalidRequest, Misconfigured, NotFound
from latchwork.spark import SparkLatch
from latchwork.spark.latch import MAX_PARTITIONS
from latchwork.spark.phase import job_phase
from latchwork.store import MemoryStore, Put
from latchwork.store.connect import connect
from latchwork.store.port import Update
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import DOUBTS, CountingStore, FaultyStore

XDC, DC = LatchLevel.XDC, LatchLevel.DC


@pytest.fixture
def store():
    return MemoryStore(ManualClock())


@pytest.fixture
def task(monkeypatch):
    """Play the task of a partition: `task(3)`; `task(None)` leaves it."""

    def play(partition):
        context = None if partition is None else SimpleNamespace(partitionId=lambda: partition)
        monkeypatch.setattr(pyspark.TaskContext, "_taskContext", context)

    return play


def create(store, partitions=4, job="nightly", **settings):
    return SparkLatch.create(store, "shop", job, partitions, **{"farm_id": "here", **settings})


def get(store, job="nightly", **settings):
    return SparkLatch.get(store, "shop", job, **{"farm_id": "here", **settings})


# ---- names


def latch_id(job, phase=None, generation=0):
    return job_phase("shop", job, phase=phase, generation=generation, farm_id="here", level=DC).latch_id


def test_the_latch_id_names_job_phase_and_generation():
    assert latch_id("nightly") == "spark/nightly//0"
    assert latch_id("a/b", "x#y", 7) == "spark/a%2Fb/x%23y/7"


def test_no_two_jobs_phases_or_generations_share_a_latch():
    names = ["a", "b", "a/b", "b/1", "a%2Fb", "/", "#", "1", "a/b/1"]
    ids = [latch_id(job, phase, run) for job in names for phase in (None, *names) for run in (0, 1, 11)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"job": ""}, "job is ''"),
        ({"phase": ""}, "phase is ''"),
        ({"generation": -1}, "generation is -1"),
        ({"partitions": -1}, "partitions is -1"),
        ({"partitions": MAX_PARTITIONS + 1}, str(MAX_PARTITIONS)),
        ({"partitions": 2.0}, "partitions is 2.0"),
        ({"farm_id": "ten-bytes!"}, "at most 9"),
        ({"farms": ["here"]}, "level=LatchLevel.XDC"),
        ({"ttl": 0}, "ttl is 0"),
    ],
)
def test_bad_input_is_refused_by_name_before_any_io(store, settings, says):
    with pytest.raises(InvalidRequest, match=says):
        create(store, **settings)
    assert not store._records


def test_a_share_is_created_once(store):
    create(store)
    with pytest.raises(AlreadyExists):
        create(store)
    create(store, generation=1)


# ---- counting


def test_a_partition_counts_when_its_last_item_is_taken(store, task):
    latch = create(store)
    task(2)
    items = latch.count_down_partitions(iter("ab"))
    assert [next(items), next(items)] == ["a", "b"]
    assert len(latch.missing()) == 4
    assert list(items) == []
    assert latch.missing() == ["here/0", "here/1", "here/3"]


def test_a_partition_that_fails_on_the_way_does_not_count(store, task):
    latch = create(store)
    task(2)

    def fails():
        yield 1
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(latch.count_down_partitions(fails()))
    assert len(latch.missing()) == 4


def test_an_iterator_that_is_closed_early_does_not_count(store, task):
    latch = create(store)
    task(2)
    items = latch.count_down_partitions(iter("ab"))
    next(items)
    items.close()
    assert len(latch.missing()) == 4


def test_a_partition_counts_once_however_often_it_is_repeated(store, task):
    latch = create(store)
    task(2)
    assert [latch.count_down_partition() for _ in range(3)] == [3, 3, 3]
    assert list(get(store).count_down_partitions([])) == []
    assert latch.counts() == {"here": 3}


@pytest.mark.parametrize("fault", DOUBTS)
def test_a_partition_counts_once_when_replies_are_lost(store, task, fault):
    create(store)
    faulty = FaultyStore(store, {2: fault})
    task(1)
    get(faulty).count_down_partition()
    faulty.deliver()
    assert faulty.fired[fault] == 1
    assert get(store).missing() == ["here/0", "here/2", "here/3"]


def test_counting_outside_of_a_task_is_refused(store, task):
    task(None)
    latch = create(store)
    for count in (latch.count_down_partition, lambda: latch.count_down_partitions([])):
        with pytest.raises(InvalidRequest, match="call it inside mapPartitions"):
            count()


def test_a_partition_too_many_is_refused_before_it_counts(store, task):
    latch = create(store)
    task(4)
    with pytest.raises(InvalidRequest, match=r"partition 4.*created for 4"):
        latch.count_down_partition()
    assert len(latch.missing()) == 4


@pytest.mark.parametrize("counted", [0, 3, 4])
def test_a_handle_from_get_refuses_partitions_that_the_latch_does_not_have(store, task, counted):
    latch = create(store)
    for partition in range(counted):
        task(partition)
        latch.count_down_partition()
    task(4)
    with pytest.raises(InvalidRequest, match=r"partition 4.*created for 4"):
        get(store).count_down_partition()
    with pytest.raises(InvalidRequest, match=r"partition 4.*created for 4"):
        list(get(store).count_down_partitions([]))
    assert len(latch.missing()) == 4 - counted


def test_a_handle_from_get_asks_once_how_many_partitions_there_are(store, task):
    create(store)
    counting = CountingStore(store)
    latch = get(counting)
    for partition in range(2):
        task(partition)
        latch.count_down_partition()
    assert counting.total == 1 + 2
    task(4)
    with pytest.raises(InvalidRequest, match="partition 4"):
        latch.count_down_partition()
    assert counting.total == 3


def test_a_share_of_an_earlier_version_which_did_not_keep_their_number_is_counted_as_before(store, task):
    create(store)
    task(0)
    get(store).count_down_partition()
    store.operate(job_phase_key(), Put("names#here", None))
    counting = CountingStore(store)
    latch = get(counting)
    task(1)
    assert latch.count_down_partition() == 2
    assert counting.total == 3
    task(4)
    with pytest.raises(InvalidRequest, match="created for 4"):
        latch.count_down_partition()
    assert latch.missing() == ["here/2", "here/3"]
    again = SparkLatch.get_or_create(store, "shop", "nightly", 9, farm_id="here")
    with pytest.raises(InvalidRequest, match="created for 4"):
        again.count_down_partition()


def job_phase_key():
    return job_phase("shop", "nightly", phase=None, generation=0, farm_id="here", level=DC).key


def test_a_driver_that_runs_again_goes_on_with_its_share(store, task):
    first = SparkLatch.get_or_create(store, "shop", "nightly", 2, farm_id="here")
    task(0)
    first.count_down_partition()
    again = SparkLatch.get_or_create(store, "shop", "nightly", 2, farm_id="here")
    assert again.missing() == ["here/1"]
    task(2)
    with pytest.raises(InvalidRequest, match="created for 2"):
        again.count_down_partition()
    with pytest.raises(AlreadyExists, match="other parties, 2"):
        SparkLatch.get_or_create(store, "shop", "nightly", 3, farm_id="here")
    for _ in range(2):
        assert SparkLatch.get_or_create(store, "shop", "nightly", 3, farm_id="here", generation=1).counts() == {
            "here": 3
        }


def test_the_number_of_partitions_is_kept_and_not_their_names(store):
    create(store, 100_000)
    assert store.get(job_phase_key()).bins["names#here"] == 100_000


@pytest.mark.parametrize("progress", [True, None])
def test_a_driver_that_waits_before_another_creates_the_latch_waits_for_it(store, progress):
    clock = store._server
    clock.at(2.0, lambda: create(store, 0))
    with pytest.raises(NotFound):
        get(store).wait(10, progress)
    assert get(store).wait(10, progress, create_timeout=5)
    assert clock.monotonic() < 2.1


def test_a_driver_that_joins_keeps_the_time_that_the_latch_has_left(store, task):
    create(store, ttl=7200)
    task(0)
    get(store).count_down_partition()
    assert store.get(job_phase_key()).ttl == 7200


def test_a_count_says_when_the_latch_is_not_there_or_is_without_this_farms_share(store, task):
    task(0)
    with pytest.raises(NotFound, match="never created"):
        get(store).count_down_partition()
    create(store, farm_id="east", farms=["east", "here"], level=XDC)
    with pytest.raises(NotFound, match=r"farm 'here' .* shares of east"):
        get(store, level=XDC).count_down_partition()


def test_without_pyspark_the_error_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(Misconfigured, match=r"pip install 'latchwork\[spark\]'"):
        create(store).count_down_partition()


# ---- waiting and what is missing


def test_it_is_released_when_every_partition_has_counted(store, task):
    latch = create(store, 2)
    for partition in range(2):
        assert not latch.wait(0, progress=False)
        task(partition)
        latch.count_down_partition()
    assert latch.wait(0)


def test_a_job_without_partitions_is_released_at_once(store):
    assert create(store, 0).wait(0)


def test_a_wait_that_times_out_says_false_and_tells_the_progress(store):
    seen = []
    assert create(store).wait(1.5, progress=seen.append) is False
    assert [now.remaining for now in seen] == [4]


def test_missing_names_the_partitions_of_all_farms_and_those_without_a_share(store, task):
    east = create(store, 2, farms=["east", "west"], farm_id="east", level=XDC)
    task(0)
    east.count_down_partition()
    assert east.missing() == ["east/1", "west/*"]
    west = create(store, 3, farms=["east", "west"], farm_id="west", level=XDC)
    west.count_down_partition()
    assert east.missing() == west.missing() == ["east/1", "west/1", "west/2"]


def test_missing_names_the_partitions_of_a_farm_whose_name_is_none_that_we_give(store):
    latch = create(store, 2, level=XDC)
    key = job_phase("shop", "nightly", phase=None, generation=0, farm_id="here", level=XDC).key
    store._operate(Update(key, (Put("count#dc:2", 1), Put("done#dc:2", {0: 1}))))
    assert latch.missing() == ["dc:2/1", "here/0", "here/1"]


def test_at_dc_level_a_farm_sees_only_its_own(store):
    create(store, 2, farm_id="east")
    create(store, 1, farm_id="west")
    assert get(store, farm_id="west").missing() == ["west/0"]


def test_another_driver_sees_what_a_farm_that_is_gone_left_behind(store, task):
    latch = create(store)
    task(3)
    latch.count_down_partition()
    assert get(store).missing() == ["here/0", "here/1", "here/2"]


def test_a_deleted_latch_never_reads_as_released(store):
    latch = create(store)
    assert latch.delete()
    for ask in (latch.missing, latch.counts, lambda: latch.wait(0)):
        with pytest.raises(NotFound):
            ask()


# ---- preflight


def test_preflight_passes_where_nothing_would_hang(store):
    create(store)
    get(store).preflight(4)


def test_preflight_passes_for_a_job_that_goes_on_where_it_was_killed(store, task):
    latch = create(store)
    task(3)
    latch.count_down_partition()
    get(store).preflight(4)


@pytest.mark.parametrize(("partitions", "says"), [(3, "the rest would never count"), (5, "some would be refused")])
def test_preflight_names_unequal_numbers_of_partitions(store, partitions, says):
    create(store)
    with pytest.raises(InvalidRequest, match=f"the job has {partitions} .* created for 4: {says}"):
        get(store).preflight(partitions)


def test_preflight_names_the_generation_that_is_there(store):
    create(store, generation=3)
    with pytest.raises(NotFound, match=r"generation 4 .* there is generation 3"):
        get(store, generation=4).preflight(4)


def test_preflight_says_when_the_latch_was_never_created(store):
    with pytest.raises(NotFound, match="never created"):
        get(store).preflight(4)


def test_preflight_names_the_farms_that_have_a_share(store):
    create(store, farm_id="east", farms=["east", "here"], level=XDC)
    with pytest.raises(NotFound, match=r"farm 'here' .* shares of east"):
        get(store, level=XDC).preflight(4)


def test_after_preflight_a_handle_from_get_refuses_partitions_too_many(store, task):
    create(store)
    latch = get(store)
    latch.preflight(4)
    task(4)
    with pytest.raises(InvalidRequest, match="partition 4"):
        latch.count_down_partition()


# ---- shipping


def test_a_pickled_latch_counts_the_same_latch_and_keeps_its_limit(tmp_path, task):
    latch = create(connect(f"sqlite:{tmp_path / 'store.db'}"))
    copy = pickle.loads(pickle.dumps(latch))
    task(1)
    copy.count_down_partition()
    assert latch.missing() == ["here/0", "here/2", "here/3"]
    task(4)
    with pytest.raises(InvalidRequest, match="partition 4"):
        copy.count_down_partition()


def test_a_pickled_latch_of_many_partitions_is_small(tmp_path):
    latch = create(connect(f"sqlite:{tmp_path / 'store.db'}"), 50_000)
    assert len(pickle.dumps(latch)) < 2_000


def test_a_late_count_does_not_hit_a_latch_that_was_made_again(store, task):
    old = create(store)
    old.delete()
    new = create(store)
    task(0)
    with pytest.raises(NotFound):
        old.count_down_partition()
    assert len(new.missing()) == 4


def test_the_plain_latch_underneath_is_an_ordinary_one(store, task):
    create(store)
    task(0)
    get(store).count_down_partition()
    plain = CountDownLatch.get(store, "shop", "spark/nightly//0", farm_id="here")
    assert plain.count() == 3
    assert plain.parties() == {0}
