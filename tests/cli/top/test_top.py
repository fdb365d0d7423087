"""The screen of `latchwork top`, without a terminal: keys go in, lines come out."""

from __future__ import annotations

import curses
import signal
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from latchwork.cli.bulk import Run
from latchwork.cli.top import coord, screen
from latchwork.cli.top.actions import some_messages
from latchwork.cli.top.app import HELP, PAGES, Page, Top
from latchwork.cli.top.feed import PATIENCE, Feed
from latchwork.cli.top.table import BAD, BARS, CHOSEN, DASH, PLAIN_BARS, Column, Line, Table, row, spark
from latchwork.coord import CountDownLatch, FencedLock, Group, Semaphore
from latchwork.coord.election.candidates import Candidates
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, OutcomeUnknown, Unavailable
from latchwork.observe.audit import audit_of
from latchwork.queue import QueueConfig, QueueRegistry, Schedule, ShardedQueue
from latchwork.queue.sharded.stream import acknowledge, take
from latchwork.queue.sharded.workers import WorkerReport, reporting
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore, Outage
from tests.support.undecodable import Undecodable

HOSTILE = "\x1b[2J\x1b]0;title\x07\r\nq\u202e\u0301\t"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock), seams=clock)


@pytest.fixture
def registry(store):
    return QueueRegistry(store, "shop", farm_id="local")


@pytest.fixture
def orders(registry):
    queue = registry.create(QueueConfig("orders", shards=2))
    queue.publish_many(range(12))
    return queue


@pytest.fixture
def mails(registry):
    """A queue with three parked messages, and one that comes later."""
    queue = registry.create(QueueConfig("mails", shards=2, max_deliveries=1))
    queue.publish_many(range(3), message_ids=["m-0", "m-1", "m-2"])
    for delivery in queue.receive(3):
        delivery.nack("exception", error="SMTP said no")
    queue.publish("later", delay=600, message_id="m-later")
    return queue


class Person:
    """Somebody at the screen; whatever it asks for is read at once."""

    def __init__(self, store, clock, width=80, height=24):
        self.feed = Feed({"local": store}, ["shop"], 2.0, clock)
        self.top, self.width, self.height, self.clock = Top(self.feed), width, height, clock
        self.feed.look()

    def sees(self, width=None, height=None):
        """The lines of the screen, once what it has asked for is there."""
        size = width or self.width, height or self.height
        self.top.screen(*size)
        while self.feed._wanted:
            self.feed.work()
        return self.top.screen(*size)

    def text(self):
        return "\n".join(line.text for line in self.sees())

    def press(self, *keys):
        for key in keys:
            self.sees()
            assert self.top.press(key)
        return self.text()

    def types(self, text):
        return self.press(*text)

    def looks(self, seconds=2.0):
        self.clock.advance(seconds)
        self.feed.look()
        return self.text()

    def is_told(self, *keys):
        """What the keys lead to, in one line: what is said at the foot may be broken anywhere."""
        return " ".join(self.press(*keys).split())

    @property
    def chosen(self):
        return [line.text for line in self.sees() if line.style == CHOSEN]


@pytest.fixture
def person(store, clock):
    return Person(store, clock)


def reports(queue, worker="web-1:17:x@local", **facts):
    queue.store.repeat(reporting(queue, replace(WorkerReport(worker, 0.0, queue.live.changed, 4, 1, 5, 2), **facts)))


def test_keys_before_the_first_look_do_nothing(store, clock):
    top = Top(Feed({"local": store}, ["shop"], 2.0, clock))
    before = top.screen(80, 24)
    for key in ("down", "pgdn", "end", "up"):
        top.press(key)
    assert top.screen(80, 24) == before


# ---- what is shown


def test_what_is_wrong_stands_first_with_its_remedy_and_then_every_client(orders, mails, person):
    person.feed.look()
    text = person.looks(31)
    assert text.index("problem  queue mails of shop: 3 parked") < text.index("-> latchwork queue peek mails")
    assert text.index("-> latchwork queue peek") < text.index("client ")
    assert "no worker" in text
    assert [line.style for line in person.sees() if line.text.startswith("problem")] == [BAD] * 2


def test_queues_are_sorted_by_any_column_and_a_row_stays_chosen(orders, mails, person):
    reports(orders)
    person.looks()
    text = person.press("2")
    assert text.index("mails") < text.index("orders")
    assert person.press("down")
    assert person.chosen[0].startswith("orders")
    text = person.press(">", ">")  # by what is ready, the most first
    assert "ready*" in text
    assert text.index("orders") < text.index("mails")
    assert person.chosen[0].startswith("orders")
    assert person.press("I").index("mails ") < person.text().index("orders ")


@pytest.mark.parametrize("down", [False, True])
def test_a_row_without_a_value_in_the_column_of_the_order_is_the_last_and_is_there_once(down):
    table = Table((Column("ready"),), tuple(row(None, (value,)) for value in (2, None, 7)))
    found = [one.cells[0] for one in table.sorted_by(0, down=down).rows]
    assert found == (["7", "2", DASH] if down else ["2", "7", DASH])


def test_a_queue_shows_its_sides_its_workers_and_why_messages_fail(orders, person):
    reports(orders, reasons={"exception": 2})
    reports(orders, "web-2:9:y@local")
    person.looks(25)
    reports(orders, reasons={"exception": 2})
    person.looks(10)
    text = person.press("2", "enter")
    for said in ("queue: local / shop / orders", "ready            12", "web-1:17", "overdue", "nothing was noted"):
        assert said in text
    person.width = 140
    assert "exception 2" in person.text()
    assert "orders" in person.press("esc")
    assert person.top.page.name == "queues"


def test_what_is_not_known_is_a_dash_and_no_zero(orders, person):
    person.width = 160
    text = person.press("2")
    assert "in/s" not in text, "there was one look: no rate is known"
    orders.publish_many(range(4))
    line = next(line for line in person.looks(2).splitlines() if line.startswith("orders"))
    assert "2.0" in line
    assert row(None, (None, "", 0)).cells == (DASH, DASH, "0")


def test_messages_are_filtered_and_one_is_found_by_its_id_in_every_side(mails, person):
    text = person.press("2", "enter", "m")
    assert "mails, parked" in text
    assert text.count("SMTP said no") == 3
    text = person.press("/", "m", "-", "1")
    assert "m-1" in text
    assert "m-0" not in text
    person.press("esc")
    person.press("i")
    person.types("m-later")
    text = person.press("enter")
    assert "in all sides" in text
    assert "m-later" in text
    assert "m-0" not in text
    person.press("esc", "i")
    person.types("absent")
    assert "no message of id 'absent'" in person.press("enter")
    person.press("esc", "s")
    assert person.top.page.side == "ready"


def test_latches_and_groups_say_who_is_missing_and_whether_he_is_dead(store, clock, orders, person):
    latch = CountDownLatch.create(store, "shop", "nightly", parties=["a", "b", "c"], ttl=7200, farm_id="local")
    latch.count_down(party="a")
    group = Group(store, "etl", farm_id="local")
    group.join("b", keep_alive=False, lease=5)
    group.join("c", keep_alive=False, lease=3600)
    clock.advance(60)
    text = person.press("4")
    assert "b (DEAD for 60 s), c (alive)" in text
    assert "local/b has not renewed for 60 s" in text


def test_locks_elections_semaphores_schedules_and_farms_have_a_page(store, clock, registry, orders, person):
    FencedLock(store, "backup").try_acquire()
    Semaphore(store, "gpu", permits=2).try_acquire()
    registry.schedule(Schedule("nightly", "orders", "tick", cron="0 3 * * *"))
    orders.batch("load").publish_many([1, 2])
    for key, said in (
        ("5", "backup"),
        ("7", "1 of 2 held"),
        ("8", "At 03:00 every day, UTC (0 3 * * *)"),
        ("8", "0 of 2 done"),
        ("9", "answers"),
    ):
        assert said in person.press(key), PAGES[int(key) - 1]
    assert "no election" in person.press("6")


def test_streams_say_whose_they_are_how_far_behind_and_when_their_last_batch_was(registry, orders, person, clock):
    owner = take(orders.pointers, "etl")
    (shard,) = [one.shard for one in orders.pointers.states() if one.loaded][:1]
    acknowledge(orders.pointers, owner, shard, 4)
    person.width = 120
    line = next(line for line in (person.press("0"), person.looks(30))[1].splitlines() if line.startswith("orders "))
    assert line.split()[2:4] == ["etl", "8"]
    assert "30 s" in line
    assert "queue: local / shop / orders" in person.press("enter")


def test_outboxes_of_this_machine_are_shown(store, clock, orders, tmp_path):
    person = Person(store, clock)
    person.feed.outboxes = [(str(tmp_path), "orders", "outbox")]
    text = person.press("9", "tab", "tab")
    assert "no outbox 'outbox'" in text
    assert person.top.page.name == "outboxes"


def test_every_page_fits_into_any_window_and_steers_no_terminal(store, clock, registry, mails, person):
    mails.publish("m", message_id="id" + HOSTILE)
    mails.publish("m", delay=60, message_id="late" + HOSTILE)
    reports(mails, HOSTILE + ":1:x@local")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mails.pause(by="eve" + HOSTILE)
    FencedLock(store, "lock" + HOSTILE, owner="o" + HOSTILE).try_acquire()
    person.looks()
    for keys in (
        *"1234567890",
        ("9", "tab", "tab"),
        ("2", "enter"),
        ("2", "enter", "m"),
        ("2", "enter", "m", "s"),
        "?",
    ):
        person.top.stack, person.top.helps = [type(person.top.page)("overview")], False
        person.press(*keys)
        for width, height in ((80, 24), (200, 60), (40, 10), (20, 3), (1, 1)):
            lines = person.sees(width, height)
            assert len(lines) <= height
            for line in lines:
                assert cell_len(line.text) <= width, (keys, line)
                assert line.text.isprintable(), (keys, line.text)


def test_the_keys_of_the_help_are_all_there_and_all_fit_into_80_columns():
    assert max(map(len, HELP.splitlines())) <= 80
    assert len(HELP.splitlines()) <= 24


# ---- actions


def test_an_action_names_its_consequence_and_is_done_only_after_yes(orders, person):
    reports(orders)
    person.looks()
    text = person.is_told("2", "p")
    assert "Within 3 s no handler begins in 1 worker." in text
    assert "12 ready messages wait" in text
    assert "pause orders? y: yes" in text
    assert "not done: pause orders" in person.press("n")
    assert orders.concurrency == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "paused orders" in person.press("p", "y")
    orders.registry.follow([orders])
    assert (orders.concurrency, "@" in orders.live.changed_by) == (0, True)
    person.looks()
    assert "It was paused by" in person.press("p")
    assert "resumed orders" in person.press("y")
    orders.registry.follow([orders])
    assert orders.concurrency == 1


def test_a_person_who_pauses_a_queue_is_told_which_of_its_groups_go_on(orders, person):
    orders.group("audit")
    orders.group("slow")
    with pytest.warns(UserWarning, match="paused"):
        orders.group("slow").pause()
    person.looks()
    assert "Its groups go on: orders@audit; pause each by itself." in person.is_told("2", "p")


def test_threads_are_scaled_within_their_limits(orders, person):
    reports(orders)
    person.looks()
    assert "scale orders from 1 to 2" in person.press("2", "+")
    person.press("y")
    orders.registry.follow([orders])
    assert orders.concurrency == 2
    person.press("c")
    person.types("101")
    assert "give 0 to 100" in person.press("enter")
    person.press("c")
    person.types("many")
    assert "no number of threads" in person.press("enter")
    assert orders.concurrency == 2


def test_the_keys_of_a_queue_do_nothing_on_the_page_of_one_that_is_gone(orders, person):
    person.looks()
    person.top.stack.append(Page("queue", ("local", "shop", "gone")))
    for key in "pc+-rmh":
        person.press(key)
    assert (person.top.asking, person.top.prompt) == (None, None)


def test_parked_messages_are_redriven_together_or_one_by_one_and_discarded_and_cancelled(mails, person):
    person.press("2", "enter", "m", "down")
    assert "redrive m-1 of mails" in person.press("r")
    assert "redrive m-1: done" in person.press("y")
    person.looks()
    assert "This cannot be undone" in person.is_told("d")
    assert "discard m-" in person.press("y")
    person.press("s", "s")
    assert person.top.page.side == "delayed"
    person.press("x")
    assert "cancel m-later: done" in person.press("y")
    person.looks()
    assert "go back to the queue" in person.is_told("esc", "r")
    assert "redriven: 1" in person.press("y")
    depth = mails.depth()
    assert (depth.ready, depth.parked, depth.delayed) == (2, 0, 0)
    person.looks()
    assert "nothing is parked" in person.press("r")


def test_what_was_redriven_before_an_error_is_told(mails, person, monkeypatch):
    def redrive(queue, limit):
        raise Unavailable("no node", redriven=["m-1", "m-2"])

    monkeypatch.setattr(ShardedQueue, "redrive", redrive)
    person.press("2", "enter", "r")
    assert "redriven: 2; no node" in person.press("y")
    assert audit_of(mails.store)[0].after == "redriven: 2; no node"


def test_a_message_is_moved_to_another_queue(registry, mails, person):
    by_hand = registry.create(QueueConfig("by-hand", shards=1))
    person.press("2", "enter", "m", "down", "m")
    assert "the queue that it goes to: _" in person.text()
    person.types("by-hand")
    assert "leaves parked, and waits in by-hand" in person.is_told("enter")
    assert "move m-1: done" in person.press("y")
    assert (by_hand.depth().ready, mails.depth().parked) == (1, 2)
    person.press("m")
    assert "give the queue" in person.press("enter")


def test_all_that_match_the_filter_are_taken_as_they_were_chosen_and_told_one_by_one(registry, mails, person):
    by_hand = registry.create(QueueConfig("by-hand", shards=1))
    person.press("2", "enter", "m", "/", "m", "-", "1", "enter")
    assert "discard 1 message of mails?" in person.is_told("D")
    assert "not done" in person.press("n")
    person.press("esc")
    assert "redrive 3 messages of mails?" in person.is_told("R")
    assert "no others" in person.is_told()
    (gone,) = mails.parked.search(limit=1)
    mails.parked.discard([gone])
    person.sees()
    person.top.press("y")
    person.feed.aside.join(30)
    text = person.text()
    assert "redrive 3 of 3: 2 done, 1 not there" in text
    assert f"{gone.message_id} not there" in " ".join(text.split())
    assert mails.depth().ready == 2
    person.looks()
    person.press("esc", "M")
    person.types("by-hand")
    assert "nothing parked in mails matches" in person.press("enter")
    assert "only a delayed message can be cancelled" in person.press("X")
    assert by_hand.depth().ready == 0


def test_after_nothing_matched_another_action_is_no_run_and_all_that_match_can_be_chosen_again(mails, person):
    person.press("2", "enter", "m", "/", *"none", "enter")
    assert "nothing parked in mails matches" in person.press("D")
    person.press("esc", "down", "d")
    assert "discard m-1: done" in person.press("y")
    assert "redrive 2 messages of mails?" in person.is_told("R")


def test_what_was_chosen_replaces_no_question_and_is_of_the_queue_in_which_it_was_asked(
    registry, mails, orders, person
):
    person.press("2", "enter", "m")
    person.sees()
    person.top.press("R")  # it is chosen later
    person.top.press("d")
    assert "discard m-0 of mails?" in person.is_told()
    assert "redrive 3 messages of mails?" in " ".join(person.press("n").split())
    person.press("n")
    person.top.press("D")
    person.top.stack.append(Page("messages", ("local", "shop", "orders")))
    assert "?" not in "".join(person.chosen)
    assert mails.depth().parked == 3


def test_an_action_on_all_that_match_is_stopped_by_a_key(registry, mails, person, monkeypatch):
    mails.publish_many(range(250))
    while held := mails.receive(100):
        for delivery in held:
            delivery.nack("exception")
    person.looks()
    person.press("2", "enter", "m", "R")
    real = Run._take

    def take(run, queue, part):
        took = real(run, queue, part)
        assert "S stops it: redrive 1" in "\n".join(line.text for line in person.top.screen(80, 24))
        person.top.press("S")
        return took

    monkeypatch.setattr(Run, "_take", take)
    person.sees()
    person.top.press("y")
    person.feed.aside.join(30)
    assert "redrive 100 of 253: 153 not tried, 100 done; stopped by " in person.text()


def test_a_page_of_messages_goes_on_where_the_one_before_ended(mails, person):
    mails.publish_many(range(250), message_ids=[f"n-{n}" for n in range(250)])
    while held := mails.receive(100):
        for delivery in held:
            delivery.nack("exception")
    person.height = 300
    text = person.press("2", "enter", "m")
    assert "the first 200 of more" in text
    first = {word for word in text.split() if word.startswith(("n-", "m-"))}
    second = {word for word in person.press("n").split() if word.startswith(("n-", "m-"))}
    assert (len(first), len(second), first & second) == (200, 53, set())
    assert "the first 200 of more" in person.press("esc")


def test_a_schedule_is_run_now_paused_and_resumed(registry, orders, person):
    registry.schedule(Schedule("nightly", "orders", "tick", cron="0 3 * * *"))
    assert "One message goes to orders now" in person.is_told("8", "t")
    assert "published nightly@" in person.press("y")
    assert orders.depth().ready == 13
    assert "none of them later" in person.is_told("p")
    assert "paused nightly" in person.press("y")
    person.width = 120
    assert "PAUSED by " in person.looks(6)
    assert "is the reason gone?" in person.is_told("p")
    assert "resumed nightly" in person.press("y")
    assert "PAUSED" not in person.looks(6)
    orders.batch("load").publish_many([1])
    person.looks(6)
    person.press("end")
    assert "only a schedule can be run" in person.press("t")
    assert "only a schedule can be paused" in person.press("p")


def test_ticks_that_nobody_publishes_are_said_to_be_missed(registry, orders, person):
    registry.schedule(Schedule("often", "orders", "tick", every=60))
    person.press("8")
    person.width = 120
    line = next(line for line in person.looks(600).splitlines() if line.startswith("schedule "))
    assert line.split()[-1] in {"9", "10"}


def test_a_leader_steps_down(store, orders, person):
    FencedLock(store, "office", owner="web-1", lease=60).acquire(0)  # as an election has it
    Candidates(store, "office").report("web-1", 60)
    assert "NO OTHER CANDIDATE" in person.is_told("6", "d")
    assert "not done" in person.press("n")
    Candidates(store, "office").report("web-2", 60)
    person.looks(6)
    told = person.is_told("d")
    assert "web-1 leads." in told
    assert "Another candidate is elected once its lease is over." in told
    assert "the leader of office steps down" in person.press("y")
    told = next(line for line in person.looks(6).splitlines() if line.startswith("office "))
    assert "nobody, broken by" not in told
    assert "nobody: " in told
    assert "made the leader step down" in told
    assert "nobody leads office" in person.press("d")
    (deed,) = audit_of(store)
    assert (deed.what, deed.target, deed.outcome) == ("step-down", "election/office", "done")
    assert deed.before.startswith("led by web-1, epoch ")


def test_a_lock_is_broken_and_a_party_counted_down(store, orders, person):
    grant = FencedLock(store, "backup", owner="web-1", lease=60).acquire(0)
    assert "break backup (fence" in person.is_told("5", "b")
    assert "Held by web-1." in person.text()
    assert "not done" in person.press("n")
    assert "broken: backup can be taken once its lease is over" in person.press("b", "y")
    with pytest.raises(FencedOut):
        grant.renew()
    person.looks(10)
    assert "broken: backup can be taken now" in person.press("B", "y")
    assert FencedLock(store, "backup").try_acquire() is not None
    CountDownLatch.create(store, "shop", "nightly", parties=["a", "b"], farm_id="local")
    person.press("4", "c")
    person.types("b")
    assert "no longer waits for b" in person.is_told("enter")
    assert "counted down b: 1 to go" in person.press("y")
    person.press("c")
    person.types("x")
    person.press("enter")
    assert "has no party 'x'" in person.press("y")


def test_an_action_that_fails_says_so_and_why(store, orders, person):
    person.press("2", "p")
    person.top.press("y")
    store.plan = {store._number + n: "dropped" for n in range(1, 400)}
    person.feed.work()
    assert "FAILED: " in person.text()
    assert [line.style for line in person.sees() if line.text.startswith("FAILED")] == [BAD]


def test_an_action_of_which_one_message_fails_says_what_was_done_to_the_others(registry, store):
    queue = registry.create(QueueConfig("mails", shards=2))
    queue.group("audit")
    queue.publish("fails", message_id="seen")
    queue.receive()[0].nack("exception", error="boom")
    queue.publish_many(range(2), delay=600, message_ids=["d-0", "d-1"])
    action = some_messages(("local", "shop", "mails"), "cancel", "delayed", ["seen", "d-0", "d-1", "none"])
    feed = Feed({"local": store}, ["shop"], 2.0, store.seams)
    feed.act(lambda: action.do(feed, "anna"))
    feed.work()
    said = "cancel: 2 done, 1 failed: REFUSED, 1 not there; seen: failed: REFUSED; none: not there; groups wait for"
    assert feed.said.startswith(f"FAILED: {said}")
    (deed,) = audit_of(store)
    assert (deed.after.startswith(said), deed.outcome) == (True, "failed: REFUSED")


# ---- a store that is away


def test_a_store_that_is_away_is_shown_with_the_age_of_the_figures_and_the_screen_goes_on(store, orders, person):
    assert "1 client, 1 queue, 12 ready, figures of 0 s ago" in person.text()
    person.press("2")
    store.plan = {store._number + n: "dropped" for n in range(1, 4000)}
    text = person.looks(10)
    assert "THE STORE OF local IS AWAY" in text
    assert "orders" in text
    assert "12" in text
    assert person.sees()[0].style == BAD
    assert "orders" in person.press("enter")
    store.plan = {}
    assert "AWAY" not in person.looks()


def test_a_look_without_an_answer_is_shown_within_3_seconds(orders, person, clock):
    person.feed._began = clock.monotonic()
    clock.advance(PATIENCE + 0.5)
    assert "THE STORE DOES NOT ANSWER for 2" in person.text()
    assert PATIENCE + 0.5 < 3


def test_keys_end_it(person):
    assert person.top.press("q") is False
    assert person.top.press("f10") is False


# ---- tables


def test_the_least_important_columns_are_left_out_first_and_the_text_of_the_others_is_cut():
    table = Table(
        (Column("name", right=False), Column("ready"), Column("much", 2, right=False), Column("more", 1, right=False)),
        (row(("a",), ("a" * 30, 1, "x" * 30, "y" * 30)),),
    )
    title, (line,) = table.lines(110)
    assert title.text.split() == ["name", "ready", "much", "more"]
    title, (line,) = table.lines(75)
    assert title.text.split() == ["name", "ready", "more"]
    title, (line,) = table.lines(20)
    assert title.text.split() == ["name", "ready"]
    assert "~" in line.text
    assert cell_len(line.text) <= 20


def test_bars_are_blank_where_nothing_is_known_and_the_largest_of_their_column():
    assert spark([0, None, 8], 10) == "▁ █"
    assert spark([1.0, 9.0, 2.0, None, None, None], 3) == "█▃ "
    assert spark([0.0] * 60 + [9.0], 7) == "▁▁▁▁▁▁█", "the newest one is always seen"
    assert spark([], 5) == ""
    assert spark([None, None], 5) == "  "
    assert spark([0, 5], 5, PLAIN_BARS) == ".@"
    assert len(BARS) == len(PLAIN_BARS)


def test_a_line_at_the_corner_that_the_terminal_cannot_encode_does_not_end_the_screen(monkeypatch):
    class Corner:
        def addstr(self, y, x, text, style):
            raise curses.error if text.isascii() else UnicodeEncodeError("ascii", text, 0, 1, "no such letter")

        def timeout(self, ms):
            """Wait no longer."""

        erase = refresh = lambda self: None

    class Shows:
        def screen(self, width, height):
            return [Line("é" * width)] * height

        def press(self, key):
            return False

    for name, value in (("_styles", lambda: {"plain": 0}), ("_size", lambda _: (2, 20)), ("_key", lambda _: "q")):
        monkeypatch.setattr(screen, name, value)
    screen._run(Corner(), Shows())


class Drawn:
    """A terminal that remembers what is drawn on it, and on which these keys are pressed."""

    def __init__(self, keys=("q",), size=(2, 20)):
        self.keys, self.size, self.lines, self.cleared = iter(keys), size, {}, 0

    def get_wch(self):
        key = next(self.keys)
        if key is None:
            raise curses.error("no input")
        return key

    def addstr(self, y, x, text, style):
        self.lines[y] = (text, style)

    def getmaxyx(self):
        return self.size

    def clear(self):
        self.cleared += 1

    def timeout(self, ms):
        """Wait no longer."""

    erase = refresh = lambda self: None


@pytest.fixture
def terminal(monkeypatch):
    """What curses is told, with a terminal of no colours, and whose size nobody knows."""
    told = SimpleNamespace(resized=[], size=(0, 0), colours=False, pairs={})
    for name, value in (
        ("resizeterm", lambda *size: told.resized.append(size)),
        ("curs_set", lambda _: None), ("start_color", lambda: None), ("use_default_colors", lambda: None),
        ("has_colors", lambda: told.colours), ("color_pair", lambda number: 1 << 8 + number),
        ("init_pair", lambda number, color, _: told.pairs.update({number: color})),
    ):  # fmt: skip
        monkeypatch.setattr(curses, name, value)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: told.size)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return told


def pressed(window):
    """The keys that the screen is told; it ends with q."""
    keys = []

    class Shows:
        def screen(self, width, height):
            keys.append((width, height))
            return [Line("problem", BAD), Line("plain")]

        def press(self, key):
            keys.append(key)
            return key != "q"

    screen._run(window, Shows())
    return keys


def test_keys_have_names_and_what_is_none_is_not_told(terminal):
    window = Drawn([None, "a", "\x1b", "\n", curses.KEY_F10, 99_999, "\x00", "é", "\x0c", "q"])
    assert [key for key in pressed(window) if key != (20, 2)] == ["a", "esc", "enter", "f10", "é", "q"]
    assert window.cleared == 1, "somebody wrote over it"


@pytest.mark.parametrize(
    ("said", "size", "resized"),
    [((30, 5), (30, 5), [(5, 30)]), ((20, 2), (20, 2), []), ((0, 2), (20, 2), []), ((20, 0), (20, 2), [])],
)
def test_the_screen_has_the_size_of_the_terminal_and_is_drawn_again_where_that_has_changed(
    terminal, said, size, resized
):
    window = Drawn()
    terminal.size = said
    assert pressed(window) == [size, "q"]
    assert (terminal.resized, window.cleared) == (resized, len(resized))


@pytest.mark.parametrize(("colours", "unwanted"), [(False, ""), (True, "1"), (True, "")])
def test_a_problem_is_red_on_a_terminal_with_colours_and_bold_on_any(terminal, monkeypatch, colours, unwanted):
    terminal.colours = colours
    monkeypatch.setenv("NO_COLOR", unwanted)
    window = Drawn()
    pressed(window)
    is_red = colours and not unwanted
    red = curses.color_pair(1) if is_red else 0
    assert window.lines == {0: ("problem", curses.A_BOLD | red), 1: ("plain", curses.A_NORMAL)}
    assert (terminal.pairs.get(1) == curses.COLOR_RED) == is_red


def test_a_signal_that_ends_the_screen_leaves_the_terminal_as_it_was(terminal, monkeypatch):
    told = []

    class Ended:
        def screen(self, width, height):
            signal.raise_signal(signal.SIGTERM)

    window = Drawn()
    window.keypad = lambda on: told.append(f"keypad {on}")
    monkeypatch.setattr(curses, "initscr", lambda: window)
    for name in ("noecho", "cbreak", "nocbreak", "echo", "endwin"):
        monkeypatch.setattr(curses, name, lambda name=name: told.append(name))
    monkeypatch.setenv("ESCDELAY", "25")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit) as ended:
            screen.show(Ended())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 143
    assert told == ["noecho", "cbreak", "keypad True", "keypad False", "nocbreak", "echo", "endwin"]


@pytest.mark.parametrize(("encoding", "blocks"), [("UTF-8", BARS), ("ANSI_X3.4-1968", PLAIN_BARS)])
def test_charts_are_of_blocks_where_the_terminal_has_them(monkeypatch, encoding, blocks):
    monkeypatch.setattr("locale.setlocale", lambda *_: None)
    monkeypatch.setattr("locale.getpreferredencoding", lambda do_setlocale: encoding)
    assert screen.bars() == blocks


def test_an_action_whose_outcome_is_not_known_is_told_as_that(person):
    def lost():
        raise OutcomeUnknown("the reply was lost")

    person.feed.act(lost)
    said = next(line for line in person.sees() if "the reply was lost" in line.text)
    assert (said.text, said.style) == ("UNKNOWN whether it was done: the reply was lost [OUTCOME_UNKNOWN]", BAD)


def test_a_damaged_lock_is_not_said_to_be_free_nor_a_damaged_election_to_have_no_leader(store, person):
    for name in ("door", "office"):
        FencedLock(store, name, owner="web-1").acquire(1)
        store.operate(Key(LOCKS, name), Put("fencing-ctr", "seven"), exists=Exists.ANY)
    Candidates(store, "office").report("web-1", 60)
    assert "the record of door is damaged" in person.press("5", "b")
    assert "the record of office is damaged" in person.press("6", "d")


def test_an_election_that_cannot_be_decoded_hides_no_other_election(store):
    strange = Undecodable(store)
    for name in ("office", "tower"):
        Candidates(strange, name).report("web-1", 60)
        FencedLock(strange, name, owner="web-1").acquire(1)
    strange.bad[Key(LOCKS, "office")] = "lock-owner"
    first, second = coord.elections(strange).rows
    assert first.cells[1].startswith("DAMAGED: ")
    assert second.cells[1] == "web-1"


def test_nothing_is_not_said_to_be_wrong_while_a_farm_cannot_be_looked_at():
    clock = ManualClock()
    iad, plan = MemoryStore(clock), Outage(clock, clock.monotonic(), clock.monotonic() + 100)
    QueueRegistry(iad, "shop", farm_id="iad").create(QueueConfig("orders", shards=1))
    feed = Feed({"iad": iad, "lhr": FaultyStore(MemoryStore(clock), plan, seams=clock)}, ["shop"], 2.0, clock)
    feed.look()
    said = "\n".join(line.text for line in Top(feed).screen(100, 20))
    assert "THE STORE OF lhr IS AWAY" in said
    assert "nobody can say what is wrong in lhr" in said
    assert "nothing is wrong" not in said
    clock.advance(200)
    feed.look()
    assert "nothing is wrong" in "\n".join(line.text for line in Top(feed).screen(100, 20))


def test_a_lock_that_was_broken_a_lease_ago_has_no_dead_holder():
    clock = ManualClock()
    store = MemoryStore(clock)
    grant = FencedLock(store, "l", owner="anna").acquire(0)
    clock.advance(3_600)
    assert [one.cells[2] for one in coord.locks(store).rows] == ["anna, DEAD or paused"]
    assert FencedLock(store, "l", owner="ben").break_lease(grant.fence)
    clock.advance(3_600)
    assert [one.cells[2] for one in coord.locks(store).rows] == ["nobody, broken by ben"]
