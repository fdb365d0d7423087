"""On a terminal, as a person sees it: the bar of a wait, the live table, Ctrl-C in the middle."""

from __future__ import annotations

import os
import re

import pexpect
import pytest

from latchwork.coord import Barrier, CountDownLatch, FencedLock, RateLimiter, ReadWriteLock, Semaphore
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry
from latchwork.store.connect import connect


@pytest.fixture
def terminal(sqlite_url, warm):
    children = []

    def start(*arguments, columns=100):
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        child = warm.on_terminal("--store", sqlite_url, *arguments, size=(24, columns), env=env)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


def test_the_bar_names_what_is_missing_and_ends_when_released(terminal, sqlite_url):
    store = connect(sqlite_url)
    latch = CountDownLatch.create(store, "shop", "n", 2, farm_id="dc1")
    child = terminal("latch", "wait", "n", "--client", "shop", "--farm", "dc1", "--timeout", "30")
    child.expect(r"\[-+\] 0 of 2")
    latch.count_down(party="a")
    child.expect(r"\[#+-+\] 1 of 2")
    latch.count_down(party="b")
    child.expect("released")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_the_live_table_follows_the_queue_and_ends_at_ctrl_c(terminal, sqlite_url):
    queue = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("orders", shards=1))
    child = terminal("stats", "--client", "shop", "--watch", "--every", "0.2")
    child.expect("the upkeep: nobody leads")
    child.expect("orders")
    queue.publish_many(list(range(7)))
    child.expect(r"orders +7 ")
    child.sendintr()
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130


def test_doctor_folds_what_is_sound_and_ends_with_the_problem(terminal, sqlite_url):
    queue = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("orders", shards=1, max_deliveries=1))
    queue.publish("m")
    queue.receive()[0].nack()
    child = terminal("doctor", "--client", "shop", columns=80)
    child.expect(pexpect.EOF)
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", child.before).splitlines()
    assert len(lines) <= 12, "half of a screen"
    (sound,) = [line for line in lines if "sound: " in line]
    assert sound.startswith("ok       sound: consistency, ")
    starts = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert starts[-1] == "problem"


def test_a_narrow_terminal_folds_instead_of_breaking(terminal, sqlite_url):
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("orders", shards=1))
    child = terminal("queue", "list", "--client", "shop", columns=20)
    child.expect(pexpect.EOF)
    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", child.before)
    assert plain.strip()
    assert [line for line in plain.splitlines() if len(line) > 20] == []
    assert "Traceback" not in child.before


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_table_that_is_wider_than_the_terminal_becomes_a_paragraph_a_row_and_no_word_is_broken(
    terminal, sqlite_url, columns
):
    registry = QueueRegistry(connect(sqlite_url), "shop")
    for name in ("orders", "payments-of-the-night"):
        queue = registry.create(QueueConfig(name, retry=False, shards=1))
        queue.publish_many(list(range(12)))
        queue.fail_many(queue.receive(2), [("rejected", None), ("exception", "no")])
    shown = _shown(terminal("stats", "--client", "shop", columns=columns))
    assert max(map(len, shown.splitlines())) <= columns
    for fact in ("ready: 10", "in flight: 0", "why: rejected 1, exception 1", "oldest s: ", "parked: 0"):
        assert shown.count(fact) == 2
    assert "\npayments-of-the-night\n  " in shown


def test_a_table_that_fits_the_terminal_is_one(terminal, sqlite_url):
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("orders", shards=1))
    shown = _shown(terminal("stats", "--client", "shop", columns=140))
    assert re.search(r"\nqueue +ready +in flight .*\norders +0 +0 ", shown)


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (("lock", "run", "n"), "the lock 'n'; held by ann, renewed "),
        (("leader", "run", "n"), "the election 'n'; held by ann, renewed "),
        (("semaphore", "run", "n", "--permits", "1"), "a permit of the semaphore 'n'; held by ann"),
        (("rwlock", "read", "n"), "the lock 'n'; held by ann (write)"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_who_waits_on_a_terminal_is_told_once_who_has_it(terminal, sqlite_url, words, held):
    store = connect(sqlite_url)
    kept = {
        "semaphore": lambda: Semaphore(store, "n", permits=1, owner="ann", lease=60).acquire(timeout=5),
        "rwlock": lambda: ReadWriteLock(store, "n", owner="ann", lease=60).write(5),
    }.get(words[0], lambda: FencedLock(store, "n", owner="ann", lease=60).acquire(5))()
    child = terminal(*words, "--", "echo", "done")
    child.expect_exact(f"latchwork: waits for {held}")
    kept.release()
    child.expect("done")
    shown = _shown(child)
    assert "waits for" not in shown


@pytest.mark.long
def test_who_waits_at_a_barrier_on_a_terminal_is_told_who_is_missing(terminal, sqlite_url):
    two = ("n", "--client", "shop", "--farm", "dc1", "--party", "p", "--party", "q")
    child = terminal("barrier", "wait", *two, "--as", "p")
    child.expect_exact("latchwork: waits for the barrier 'n'; missing: q")
    Barrier(connect(sqlite_url), "shop", "n", parties=["p", "q"], farm_id="dc1").wait("q", timeout=30)
    child.expect("p: null")


@pytest.mark.long
def test_who_waits_for_a_limiter_on_a_terminal_is_told_so(terminal, sqlite_url):
    RateLimiter(connect(sqlite_url), "n", 1, 3600.0).acquire()
    child = terminal("limit", "wait", "n", "--limit", "1", "--per", "3600")
    child.expect_exact("latchwork: waits for room in the limiter 'n'")
    child.sendintr()
    child.expect("interrupted")
    assert "let through" in _shown(terminal("limit", "wait", "other", "--limit", "1", "--per", "3600"))


def test_ctrl_c_while_waiting_says_so_and_exits_130(terminal, sqlite_url):
    CountDownLatch.create(connect(sqlite_url), "shop", "n", 1, farm_id="dc1")
    child = terminal("latch", "wait", "n", "--client", "shop", "--farm", "dc1")
    child.expect("0 of 1")
    child.sendintr()
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130


def _shown(child):
    """What is on the screen in the end, without colours."""
    child.expect(pexpect.EOF)
    child.wait()
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", child.before)


MARKUP = ["[null]", "a :warning: b", "[error] disk full", "path [/var/run] closed"]


def test_entries_that_are_taken_out_are_shown_as_they_are(terminal, sqlite_url):
    bus = LargeQueue.create(connect(sqlite_url), "bus", 100)
    bus.enqueue_many(MARKUP)
    child = terminal("large", "dequeue", "bus", "-n", "4")
    shown = _shown(child)
    assert [f'"{text}"' in shown for text in MARKUP] == [True] * 4
    assert child.exitstatus == 0


def test_payloads_and_a_leaders_name_are_text_in_the_tables(terminal, sqlite_url):
    store = connect(sqlite_url)
    QueueRegistry(store, "shop").create(QueueConfig("q", shards=1)).publish_many(MARKUP)
    shown = _shown(terminal("queue", "peek", "q", "--client", "shop", columns=200))
    assert [f'"{text}"' in shown for text in MARKUP] == [True] * 4
    FencedLock(store, "shop-sweeper", owner="[/me]", lease=3600).acquire(1)
    for live in ((), ("--watch", "--rounds", "1")):
        assert "the upkeep: [/me] leads" in _shown(terminal("stats", "--client", "shop", *live, columns=200))
