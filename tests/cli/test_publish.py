"""`latchwork queue publish` of many messages: where only some could be stored, it says which."""

from __future__ import annotations

import io
import signal
import sys
from pkgutil import resolve_name

import pytest

from latchwork.cli.queue.messages import spans
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

PUBLISH = ("queue", "publish", "orders", "--client", "shop")


@pytest.fixture
def store(monkeypatch):
    """The store of the command, which can fail."""
    clock = ManualClock()
    found = FaultyStore(MemoryStore(clock), seams=clock)
    monkeypatch.setattr("latchwork.cli.session.connect", lambda _: found)
    return found


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "shop").create(QueueConfig("orders", shards=2))


@pytest.fixture
def published(lw, monkeypatch):
    """Publishes so many messages, each a line of stdin."""

    def publish(n, *more):
        lines = "".join(f"{one}\n\n" for one in range(n))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        return lw(*PUBLISH, *more)

    return publish


@pytest.fixture
def fails_after(store, queue, published):
    """Lets the store fail once the first 1,000 messages of the next command are in the queue."""

    def fail(fault, calls=range(1, 10_000)):
        before = store._number
        assert published(1_000).code == 0
        begin = 2 * store._number - before
        store.plan = {begin + n: fault for n in calls}

    return fail


def test_where_the_store_stops_answering_the_ids_of_what_is_published_and_the_rest_are_told(
    store, queue, published, fails_after
):
    fails_after("dropped")
    done = published(2_500)
    store.plan = {}
    ids = done.out.split()
    assert (done.code, len(ids)) == (1, 1_000)
    assert "latchwork: published 1,000 of 2,500 messages; their ids follow\n" in done.err
    assert "latchwork: publish only the rest again, counted from 1 without empty lines: 1001-2500\n" in done.err
    assert "may be in the queue" not in done.err
    assert done.err.endswith("[UNAVAILABLE]\n")
    assert queue.depth().ready == 2_000
    assert all(queue.status(one).state.value == "ready" for one in ids[::100])


def test_the_document_of_the_error_has_what_is_published_and_what_is_not(store, published, fails_after):
    fails_after("dropped")
    done = published(1_003, "--json")
    assert (done.code, done.json["error"], len(done.json["published"])) == (1, "UNAVAILABLE", 1_000)
    assert done.json["not_published"] == {"1001": "UNAVAILABLE", "1002": "UNAVAILABLE", "1003": "UNAVAILABLE"}


def test_messages_that_may_be_in_the_queue_are_not_told_to_be_published_again(store, published, fails_after):
    fails_after("reply_lost")
    done = published(1_003)
    assert (done.code, len(done.out.split())) == (1, 1_000)
    assert "may be in the queue" in done.err
    assert "publish only" not in done.err
    assert done.err.endswith("[OUTCOME_UNKNOWN]\n")


@pytest.fixture(autouse=True)
def takes_ctrl_c():
    """Also where the tests run in the background of a shell, which lets them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c(*_, **__):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("call", [1, 2])
def test_after_ctrl_c_the_ids_of_what_is_published_and_the_rest_are_told(store, queue, published, fails_after, call):
    fails_after(ctrl_c, [call])
    done = published(2_500)
    ids = done.out.split()
    assert (done.code, len(ids)) == (130, 1_000)
    assert "latchwork: published 1,000 of 2,500 messages; their ids follow\n" in done.err
    assert "latchwork: publish only the rest again, counted from 1 without empty lines: 2001-2500\n" in done.err
    doubtful = "these may be in the queue, counted in the same way; look before you publish them: 1001-2000\n"
    assert doubtful in done.err
    assert done.err.endswith("latchwork: interrupted\n")
    assert all(queue.status(one).state.value == "ready" for one in ids[::100])


def test_the_document_of_ctrl_c_has_what_is_published_and_what_is_not(store, published, fails_after):
    fails_after(ctrl_c, [2])
    done = published(2_001, "--json")
    assert (done.code, done.json["error"], len(done.json["published"])) == (130, "INTERRUPTED", 1_000)
    others = done.json["not_published"]
    assert (len(others), others["1001"], others["2000"]) == (1_001, "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN")
    assert others["2001"] == "INTERRUPTED"


def test_ctrl_c_before_anything_is_published_says_no_more_than_that(store, published, monkeypatch):
    monkeypatch.setattr("latchwork.cli.queue.messages.queue_of", ctrl_c)
    done = published(3, "--json")
    assert (done.code, done.json) == (130, {"error": "INTERRUPTED", "message": "interrupted"})
    assert done.err == "latchwork: interrupted\n"


@pytest.mark.parametrize("second", ["note", "Session.say"])
def test_a_second_ctrl_c_does_not_cut_off_what_the_first_has_to_tell(published, fails_after, monkeypatch, second):
    fails_after(ctrl_c, [2])
    real, left = resolve_name(f"latchwork.cli.queue.messages:{second}"), [1]

    def interrupted(*given, **facts):
        if left:
            left.pop()
            ctrl_c()
        return real(*given, **facts)

    monkeypatch.setattr(f"latchwork.cli.queue.messages.{second}", interrupted)
    done = published(2_500)
    assert (done.code, len(done.out.split()), left) == (130, 1_000, [])
    assert "look before you publish them: 1001-2000\n" in done.err


@pytest.mark.parametrize("more", [(), ("--unique", "k")])
def test_of_a_single_message_ctrl_c_tells_that_it_may_be_in_the_queue(store, queue, published, more):
    before = store._number
    assert published(1, *more).code == 0
    calls = store._number - before
    queue.receive(1)[0].ack()
    store.plan = {store._number + calls: ctrl_c}
    done = published(1, "--json", *more)
    assert (done.code, done.json["not_published"]) == (130, {"1": "OUTCOME_UNKNOWN"})
    assert "these may be in the queue" in done.err


def test_where_ctrl_c_ends_the_output_the_command_says_that_all_are_published(queue, published, monkeypatch):
    monkeypatch.setattr("latchwork.cli.queue.messages.Session.say", ctrl_c)
    done = published(3)
    assert (done.code, queue.depth().ready) == (130, 3)
    assert "latchwork: published 3 messages; perhaps not all of their ids were printed\n" in done.err


def test_where_nothing_is_published_the_error_says_all(store, queue, published):
    store.plan = dict.fromkeys(range(store._number + 1, 10_000), "dropped")
    done = published(3)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    store.plan = {}
    broken = published(0, "1", "{")
    assert (broken.code, broken.out, broken.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([1], "1"), ([1, 2], "1-2"), ([3, 4, 5, 9], "3-5, 9"), ([1, 3, 5, 6], "1, 3, 5-6"), ([], "")],
)
def test_numbers_that_follow_each_other_are_one_span(numbers, said):
    assert spans(numbers) == said
