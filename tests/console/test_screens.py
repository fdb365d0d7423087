"""What the screens show, and that no text of anybody is ever more than text there."""

from __future__ import annotations

from contextlib import closing
from html import unescape
from html.parser import HTMLParser

import pytest

import latchwork
from latchwork.cli import main
from latchwork.cli.top import actions as top_actions
from latchwork.cli.top import pages
from latchwork.cli.top.feed import Feed
from latchwork.cli.top.pages import queue_in
from latchwork.console import Access
from latchwork.console.site import SCREENS
from latchwork.errors import InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.observe.audit import AUDIT, Deed, audit_of, audited
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry, ShardedQueue
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore, Outage

from .conftest import KEY, Person, fields_of, fill

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7919*7919}}{%x%}\x1b[2J\u202e&amp;"
TAGS = frozenset(
    ("html", "head", "meta", "title", "link", "script", "body", "a", "header", "strong", "nav", "p", "form", "button",
     "main", "h1", "h2", "div", "table", "thead", "tbody", "tr", "th", "td", "label", "input", "section", "figure",
     "figcaption", "span", "svg", "path", "line", "dl", "dt", "dd", "ol", "ul", "li", "time", "pre", "details",
     "summary")
)  # fmt: skip
QUERY = "?farm=iad&client=shop&name=orders"


class Strict(HTMLParser):
    """Collects what a browser would make of a page, and complains of what the templates do not have."""

    def __init__(self, page):
        super().__init__()
        self.wrong, self.text, self.values = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in TAGS or any(name.startswith("on") or name == "style" for name in given):
            self.wrong.append((tag, given))
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.wrong.append((tag, given))
        if "alert" in "".join(given):
            self.wrong.append((tag, given))
        for name in ("href", "src", "action", "hx-get"):
            if name in given and not (given[name].startswith(("/", "?", "#")) and not given[name].startswith("//")):
                self.wrong.append((tag, given))
        self.values += [value or "" for value in given.values()]

    def handle_data(self, data):
        self.text.append(data)


def test_a_hostile_text_is_text_wherever_it_stands(store, person, registry):
    queue = fill(registry, HOSTILE)
    store.operate(Key("D_LOCK", HOSTILE), Put("x", 1), exists=Exists.ANY)
    with audited(store, Deed("iad", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)):
        pass
    someone = Person(store, Access(HOSTILE[:100], "admin", payloads=True))
    (parked, *_) = queue.parked.search()
    shown = ""
    for path, more in [
        *((f"/{name}", {}) for name in ("", *SCREENS)),
        ("/queue", KEY), ("/messages", {**KEY, "all": "1"}), ("/messages", {**KEY, "side": "delayed"}),
        ("/messages", {**KEY, "side": "ready"}), ("/message", {**KEY, "id": parked.message_id}),
        ("/message", {**KEY, "id": HOSTILE}), ("/queue", {**KEY, "name": HOSTILE}), ("/queues", {"q": HOSTILE}),
        ("/queues", {"sort": HOSTILE, "down": HOSTILE}), ("/messages", {**KEY, "side": HOSTILE}),
        ("/messages", {**KEY, "reason": HOSTILE}), ("/messages", {**KEY, "header": HOSTILE}),
        ("/messages", {**KEY, "older_than": HOSTILE}), ("/queues", {HOSTILE: HOSTILE}),
        ("/act", {**KEY, "verb": "discard", "side": "parked", "id": [parked.message_id, HOSTILE]}),
        ("/act", {**KEY, "verb": HOSTILE}), ("/act", {**KEY, "verb": "scale", "n": HOSTILE}),
        ("/queue", {"farm": HOSTILE, "client": HOSTILE, "name": HOSTILE}),
    ]:  # fmt: skip
        page = someone.http.get(path or "/", params=more)
        assert page.headers["content-type"].startswith("text/html"), (path, more, page.status_code)
        found = Strict(page.text)
        assert found.wrong == [], (path, more)
        assert "62710561" not in "".join(found.text), "no template in a text is run"
        assert "\x1b" not in "".join(found.text)
        shown += "".join(found.text)
    assert shown.count("<script>alert(1)</script>") > 20, "it was shown"
    done = someone.does("discard", side="parked", id=parked.message_id)
    assert Strict(done.text).wrong == []
    for name in SCREENS:
        assert someone.get(f"/api/v0/{name}").headers["content-type"] == "application/json"


def test_each_screen_says_what_top_says(person, orders):
    someone = person("viewer")
    said = {
        "overview": "problem", "queues": "orders", "workers": "plain:17", "latches": "plain", "locks": "lock plain",
        "semaphores": "1 of 3 held", "schedules": "often", "farms": "iad", "elections": "office plain",
        "audit": "nobody has done anything", "streams": "streamed", "outboxes": "no outbox was named",
    }  # fmt: skip
    assert set(said) == set(SCREENS)
    for name, text in said.items():
        assert text in someone.get(f"/{name}").text, name
    queue = someone.get("/queue" + QUERY).text
    assert "<svg" in queue
    assert "in the last day: at most" in queue
    assert "exception 2" in queue
    document = someone.get("/api/v0/overview").json()
    assert document["clients"][0]["of"] == "store"
    assert someone.get("/api/v0/queues").json()["rows"][0]["queue"] == "orders"


def test_outboxes_that_were_named_are_shown_with_what_waits_in_their_files(person, orders, tmp_path):
    with PagedQueue.open(tmp_path, "orders") as files:
        outbox = Outbox(files, orders)
        outbox.put({"n": 1})
        outbox.put({"n": 2})
    someone = person("viewer", outboxes=[f"{tmp_path}:orders", f"{tmp_path}:absent"])
    shown = someone.get("/api/v0/outboxes").json()["rows"]
    assert [(row["outbox"], row["waiting"]) for row in shown] == [("orders", "2"), ("absent", "-")]
    assert "no outbox 'outbox'" in shown[1]["wrong"]
    for wrong in ("orders", "a:b:c:d", ":b", "a:"):
        with pytest.raises(InvalidRequest, match="DIRECTORY:PREFIX"):
            person("viewer", outboxes=[wrong])


def test_messages_are_found_by_reason_header_age_and_id_over_every_side(person, orders, clock):
    someone = person("viewer")
    assert someone.get(f"/messages{QUERY}&reason=exhausted").text.count("plain-") >= 3
    assert "nothing parked" in someone.get(f"/messages{QUERY}&reason=timeout").text
    assert "nothing parked" in someone.get(f"/messages{QUERY}&header=tenant%3Dother").text
    assert "plain-1" in someone.get(f"/messages{QUERY}&header=tenant%3Dplain").text
    assert "nothing parked" in someone.get(f"/messages{QUERY}&older_than=3600").text
    for wanted, side in (("plain-1", "parked"), ("plain-later", "delayed")):
        page = someone.get(f"/message{QUERY}&id={wanted}").text
        assert f"<dd>{side}</dd>" in page
        assert "timeline" in page
    (delivery,) = orders.receive(1)
    assert "<dd>running</dd>" in someone.get(f"/message{QUERY}&id={delivery.message_id}").text
    assert "unknown" in someone.get(f"/message{QUERY}&id=none").text


def test_payloads_headers_and_results_are_shown_to_those_who_may_alone_and_as_the_hook_says(person, orders):
    page = f"/message{QUERY}&id=plain-1"
    assert "plain 1" in person(payloads=True).get(page).text
    hidden = person("admin").get(page).text
    assert "plain 1" not in hidden
    assert "tenant" not in hidden
    assert "your access does not include payloads" in hidden
    redacted = person(payloads=True, redact=lambda queue, message: {"queue": queue, "keys": [*message.payload]})
    text = redacted.get(page).text
    assert "secret" in text
    assert "plain 1" not in text
    failing = person(payloads=True, redact=lambda *_: 1 / 0).get(page)
    assert failing.status_code == 200
    assert "plain 1" not in failing.text


def test_chosen_messages_are_redriven_as_they_were_chosen_with_the_outcome_of_each(person, orders):
    someone = person("operator")
    chosen = [message.message_id for message in orders.parked.search()]
    page = someone.http.get("/act", params={"verb": "redrive", "side": "parked", **KEY, "id": chosen})
    assert "redrive 3 messages of orders?" in page.text
    orders.parked.discard(chosen[:1])
    done = someone.post("/act", fields_of(page.text))
    assert "2 done" in done.text
    assert f"{chosen[0]}: not there" in done.text


def test_the_page_of_an_action_of_which_one_message_fails_says_what_was_done_to_the_others(person, registry):
    queue = registry.create(QueueConfig("orders", shards=2))
    queue.group("audit")
    queue.publish("fails", message_id="seen")
    queue.receive()[0].nack("exception", error="boom")
    queue.publish_many(range(2), delay=600, message_ids=["d-0", "d-1"])
    page = person("operator").does("cancel", side="delayed", id=["seen", "d-0", "d-1"])
    assert "<h1>failed</h1>" in page.text
    said = "cancel: 2 done, 1 failed: REFUSED; seen: failed: REFUSED; groups wait for the message"
    assert said in unescape(page.text)
    (deed,) = audit_of(queue.store)
    assert (deed.after.startswith(said), deed.outcome) == (True, "failed: REFUSED")
    assert len(queue.delayed.search()) == 1


# ---- a store that is away


@pytest.mark.parametrize("fault", ["dropped", "request_lost"])
def test_a_store_that_is_away_shows_so_within_3_s_with_the_last_figures(clock, fault):
    store = FaultyStore(MemoryStore(clock), Outage(clock, 1_000_000, 2_000_000, fault), seams=clock)
    fill(QueueRegistry(store, "shop", farm_id="iad"))
    someone = Person(store, Access("anna", "operator"))
    assert "orders" in someone.get("/queues").text
    clock.advance(1_000_000 - clock.monotonic())
    for path in ("/queues", "/", "/locks", f"/queue{QUERY}", f"/messages{QUERY}", "/audit", "/farms"):
        began = clock.monotonic()
        page = someone.get(path)
        assert clock.monotonic() - began <= 3, path
        assert page.status_code == 200, path
        assert "The store of iad is away; figures of" in page.text, path
        if path in {"/queues", f"/queue{QUERY}"}:
            assert "orders" in page.text, "the last figures"
        clock.advance(5)
    assert someone.does("pause").status_code == 503
    clock.advance(1_000_000)
    assert "is away" not in someone.get("/queues").text


@pytest.mark.parametrize(
    ("failure", "title"), [(Unavailable("away"), "failed"), (OutcomeUnknown("no reply"), "perhaps done")]
)
def test_the_page_of_an_action_that_fails_says_whether_it_may_have_been_done(
    person, orders, monkeypatch, failure, title
):
    def fails(*_, **__):
        raise failure

    someone = person("operator")
    monkeypatch.setattr(type(orders), "pause", fails)
    page = someone.does("pause")
    assert page.status_code == 503
    assert f"<h1>{title}</h1>" in page.text
    assert str(failure) in page.text


def test_what_one_page_alone_needs_is_said_to_be_old_where_it_cannot_be_read_again(person, orders, clock, monkeypatch):
    def fails(*_, **__):
        raise Unavailable("much too slow")

    someone, paths = person("viewer"), (f"/message{QUERY}&id=plain-1", f"/queue{QUERY}")
    for path in paths:
        assert "old, and" not in someone.get(path).text
    clock.advance(31)
    monkeypatch.setattr(ShardedQueue, "status", fails)
    monkeypatch.setattr(pages, "history", fails)
    for path, there in zip(paths, ("<dd>parked</dd>", "<svg"), strict=True):
        page = someone.get(path).text
        assert there in page, "the last figures"
        assert "old, and could not be read again: much too slow" in page


def test_ten_readers_cost_as_one(clock, registry, orders):
    counting = CountingStore(registry.store)
    someone = Person(counting, Access("anna"))
    someone.get("/queues")
    first = counting.total
    for _ in range(10):
        assert "orders" in someone.get("/queues").text
    assert counting.total == first


# ---- the audit record


def test_what_people_do_by_top_and_by_command_is_kept_as_the_console_keeps_it(tmp_path):
    url = f"sqlite:{tmp_path}/s.db"
    words = ("--client", "shop")
    for line in (
        ("queue", "create", "orders", *words, "--shards", "2"),
        ("queue", "pause", "orders", *words, "--timeout", "0"),
        ("queue", "resume", "orders", *words, "--timeout", "0"),
        ("queue", "scale", "orders", "3", *words, "--timeout", "0"),
        ("queue", "redrive", "orders", *words, "--dry-run"),
        ("queue", "redrive", "orders", *words),
        ("queue", "discard", "orders", *words, "--id", "none"),
        ("queue", "cancel", "orders", *words, "--id", "none"),
        ("queue", "deactivate", "orders", *words, "--confirm", "orders"),
        ("queue", "activate", "orders", *words),
    ):
        with pytest.raises(SystemExit):
            main(["--store", url, *line])
    with closing(latchwork.connect(url)) as store:
        found = audit_of(store)
        assert [one.what for one in reversed(found)] == [
            "pause", "resume", "scale", "redrive", "discard", "cancel", "deactivate", "activate",
        ]  # fmt: skip
        assert all("@" in one.who and one.outcome == "done" for one in found)
        assert {one.target for one in found} == {"shop/orders", "shop/orders/none"}
        assert (found[5].before, found[5].after) == ("1 thread", "3 threads")
        feed = Feed({"local": store}, ["shop"], 2.0, store.seams)
        feed.look()
        key = ("local", "shop", "orders")
        taken, state = queue_in(feed, key)
        action = top_actions.switch(key, taken, state)
        action.do(feed, "anna@web", "why not")
        newest = audit_of(store)[0]
        assert (newest.what, newest.who, newest.why) == ("pause", "anna@web", "why not")


def test_an_action_that_cannot_be_kept_is_not_done_and_one_that_fails_says_so():
    clock = ManualClock()
    store = MemoryStore(clock)
    with pytest.raises(ValueError, match="broken"), audited(store, Deed("iad", "anna", "pause", "shop/orders")):
        raise ValueError("broken: a secret")
    (deed,) = audit_of(store)
    assert deed.outcome == "failed: ValueError"
    assert "secret" not in repr(deed)
    away, done = FaultyStore(store, Outage(clock, 0, 1e9), seams=clock), []
    with pytest.raises(LatchworkError), audited(away, Deed("iad", "anna", "pause", "shop/orders")):
        done.append(1)
    assert done == []


def test_a_damaged_audit_record_hides_no_other():
    store = MemoryStore(ManualClock())
    with audited(store, Deed("iad", "anna", "pause", "shop/orders")):
        pass
    store.operate(Key(AUDIT, "x"), Put("at", "never"), exists=Exists.ANY)
    assert [one.who for one in audit_of(store)] == ["anna"]
    assert QueueRegistry(store, "shop").queues() == []


def test_a_filter_on_a_later_page_of_messages_looks_from_the_first_one_on(person, orders):
    page = person("operator").get(f"/messages{QUERY}&side=parked&after=0.2").text
    form = page[: page.index("<button>filter</button>")]
    assert 'name="side" value="parked"' in form
    assert 'name="after"' not in form
