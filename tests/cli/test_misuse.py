"""What a person gets who asks for two things that exclude each other, or whose shell variable was empty: it is said."""

from __future__ import annotations

import pytest

from latchwork.cli import main
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store.connect import connect

SHOP = ("--client", "shop")


@pytest.fixture
def queue(sqlite_url):
    found = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", shards=1, max_deliveries=1))
    yield found
    found.store.close()


def park(queue, n):
    queue.publish_many(list(range(n)))
    for delivery in queue.receive(n):
        delivery.nack()


@pytest.mark.parametrize(("more", "instead"), [(("--all",), "--most"), (("--id", "x"), "the ids")])
def test_a_limit_of_a_redrive_is_not_dropped_in_silence(lw, queue, more, instead):
    park(queue, 3)
    done = lw("queue", "redrive", "q", *SHOP, "--limit", "1", *more)
    assert (done.code, instead in done.err) == (2, True)
    assert queue.depth().parked == 3


def test_what_replaces_a_duplicate_is_told_to_name_the_key(lw, queue):
    done = lw("queue", "publish", "q", "1", *SHOP, "--on-duplicate", "replace")
    assert done.code == 2
    assert "'replace' without --unique" in done.err
    assert "2 were given" in lw("queue", "publish", "q", "1", "2", *SHOP, "--unique", "k").err


@pytest.mark.parametrize(
    "words",
    [("publish", "q", "1"), ("search", "q"), ("discard", "q", "--all", "--confirm", "q"), ("redrive", "q", "--all")],
)
def test_no_header_is_lost_that_is_given_twice(lw, queue, words):
    park(queue, 1)
    done = lw("queue", *words, *SHOP, "--header", "tenant=a", "--header", "tenant=b")
    assert (done.code, "'tenant' twice" in done.err) == (2, True)
    assert (queue.depth().ready, queue.depth().parked) == (0, 1)


def test_an_empty_name_is_not_taken_for_none(lw, queue):
    assert lw("group", "run", "g", "--as", "", "--", "true").code == 2
    assert lw("latch", "create", "l", *SHOP, "--count", "1", "--level", "xdc", "--farms", "").code == 2
    assert lw("latch", "create", "l", *SHOP, "--count", "1", "--farms", "").code == 2
    assert lw("latch", "show", "l", *SHOP).code == 3
    assert lw("stats", "--client", "").code == 2


def test_rounds_without_watch_are_refused(lw, queue):
    assert "--rounds without --watch" in lw("stats", *SHOP, "--rounds", "2").err


def test_an_address_for_a_probe_that_is_not_served_is_refused(lw):
    done = lw("worker", "jobs:worker", "--probe-host", "0.0.0.0")
    assert (done.code, "give --probe PORT too" in done.err) == (2, True), done.err


def test_stats_shows_what_it_is_asked_for_where_no_client_has_queues(lw):
    lw("semaphore", "resize", "db", "3")
    for more in ((), ("--watch", "--rounds", "1", "--every", "0")):
        done = lw("stats", "--semaphore", "db", *more)
        assert (done.code, "0 of 3 held" in done.out) == (0, True), done.err
    assert [row["name"] for row in lw("stats", "--semaphore", "db", "--json").json] == ["db"]
    assert lw("stats").code == 3


@pytest.mark.parametrize("name", ["a" * 300, "dir/shop.db"])
def test_a_file_that_cannot_be_looked_at_is_a_store_that_does_not_answer(lw, tmp_path, monkeypatch, name):
    store = f"sqlite:{tmp_path / name}"
    if "/" in name:  # as for somebody who may not enter the directory
        real = type(tmp_path).exists

        def exists(path, *rest, **more):
            if path.name == "shop.db":
                raise PermissionError(13, "Permission denied")
            return real(path, *rest, **more)

        monkeypatch.setattr(type(tmp_path), "exists", exists)
    done = lw("doctor", "--json", store=store)
    assert done.code == 1
    assert any("the store does not answer" in one["what"] for one in done.json), done.out
    told = lw("stats", *SHOP, "--json", store=store)
    assert told.code == 1
    assert told.json["error"] not in ("NOT_FOUND", "USAGE")


def test_an_election_over_all_farms_names_no_store_that_it_does_not_use(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LATCHWORK_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    stores = [word for farm in ("iad", "lhr") for word in ("--farm-store", f"{farm}=sqlite:{tmp_path / farm}.db")]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *["leader", "run", "e", "--farm", "iad", "--zookeeper", "127.0.0.1:1", "--timeout", "0.1"],
                *stores,
                "--",
                "true",
            ]
        )
    assert ended.value.code == 4
    assert "the store is" not in capsys.readouterr().err
