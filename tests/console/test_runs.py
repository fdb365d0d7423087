"""An action on all messages that match: confirmed as it was chosen, stopped, and told row by row."""

from __future__ import annotations

from html import unescape

import pytest

from latchwork.cli.bulk import Run
from latchwork.console import Access
from latchwork.errors import Unavailable
from latchwork.observe.audit import AUDIT, audit_of
from latchwork.queue import QueueConfig, QueueRegistry
from tests.cli.test_all_of import parked_in

from .conftest import KEY, ORIGIN, Person, fields_of

CHOICE = {**KEY, "side": "parked"}


@pytest.fixture
def mails(registry):
    return parked_in(registry, "orders", 250)


def asked(person, **more):
    return person.http.get("/choose", params={**CHOICE, "verb": "redrive", **more})


def begun(person, page, **more):
    """The run of what this page asks for, once it is over."""
    answer = person.post("/act", {**fields_of(page.text), **more})
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    facts = path.replace("/run?", "/api/v0/run?")
    for _ in range(10_000):
        if person.get(facts).json()["over"]:
            break
    return path, person.get(facts).json()


def test_all_that_match_are_counted_first_and_no_others_are_taken_with_the_outcome_of_each(person, mails):
    someone = person("operator")
    page = asked(someone, reason="exhausted")
    assert "redrive 250 messages of orders?" in page.text
    assert "chosen now (reason" in unescape(page.text)
    assert mails.depth().parked == 250, "to choose changes nothing"
    gone = mails.parked.search(limit=2)
    mails.parked.discard(gone)
    parked_in(mails.registry, "orders", 3, "late")
    path, facts = begun(someone, page, why="ticket 7")
    assert facts["counts"] == {"done": 248, "not there": 2}
    assert {row["message"] for row in facts["rows"] if row["outcome"] != "done"} == {one.message_id for one in gone}
    assert sorted(one.message_id for one in mails.parked.search()) == ["late-0", "late-1", "late-2"]
    shown = someone.get(path).text
    assert shown.index("not there</td>") < shown.index("done</td>")
    assert "redrive 250 of 250: 248 done, 2 not there" in shown
    assert f"{path}".partition("id=")[2] in someone.get("/queue?farm=iad&client=shop&name=orders").text
    (deed,) = audit_of(mails.store)
    assert (deed.what, deed.who, deed.why, deed.outcome) == ("redrive", "anna", "ticket 7", "done")
    assert deed.after == "redrive 250 of 250: 248 done, 2 not there"


def test_the_filter_and_the_cap_say_what_is_taken(person, mails):
    someone = person("operator")
    assert "redrive 11 messages of orders?" in asked(someone, q="m-24").text, "m-24, and m-240 to m-249"
    page = asked(someone, most="20")
    assert "redrive 20 messages of orders?" in page.text
    assert "Others match" in page.text
    assert "nothing parked in orders matches" in asked(someone, reason="timeout").text
    for most in ("0", "10001", "-1", "x", "٣"):
        assert asked(someone, most=most).status_code == 400, most
    for more in ({"side": "ready"}, {"verb": "pause"}, {"verb": "cancel"}, {"verb": "move"}, {"header": "x"}):
        assert asked(someone, **more).status_code == 400, more
    assert audit_of(mails.store) == []


def test_all_are_moved_discarded_and_cancelled(person, mails):
    someone = person("operator")
    by_hand = mails.registry.create(QueueConfig("by-hand", shards=1))
    begun(someone, asked(someone, verb="move", to="by-hand", most="100"))
    begun(someone, asked(someone, verb="discard"))
    assert (by_hand.depth().ready, mails.depth().parked) == (100, 0)
    mails.publish_many(range(45), delay=600)
    _, facts = begun(someone, asked(someone, verb="cancel", side="delayed"))
    assert facts["counts"] == {"done": 45}
    assert mails.delayed.search() == []


def test_who_may_not_act_chooses_nothing_and_stops_nothing(store, mails, person):
    for role, actions in (("viewer", True), ("admin", False)):
        someone = person(role, actions=actions)
        assert asked(someone).status_code == 403
    admin = person("admin")
    page = asked(admin)
    said = admin.post("/act", {**fields_of(page.text), "ticket": "1.x"})
    assert "was not confirmed" in said.text
    assert mails.depth().parked == 250
    ours = Person(store, lambda request: Access("anna", request.headers.get("x-role", "operator")))
    held = fields_of(asked(ours).text)["run"]
    for verb in ("redrive", "stop"):
        refused = ours.post("/act", {**KEY, "verb": verb, "run": held}, {**ORIGIN, "x-role": "viewer"})
        assert refused.status_code == 403, verb
    assert ours.get(f"/api/v0/run?id={held}").json()["counts"] == {"not tried": 250}


def test_it_is_stopped_between_two_parts_and_says_who_stopped_it(person, mails, monkeypatch):
    someone, real = person("operator"), Run._take
    page = asked(someone)
    held = fields_of(page.text)["run"]

    def take(run, queue, part):
        took = real(run, queue, part)
        run_page = someone.get(f"/run?id={held}")
        assert "stop</button>" in run_page.text
        assert someone.post("/act", fields_of(run_page.text)).status_code == 303
        return took

    monkeypatch.setattr(Run, "_take", take)
    _, facts = begun(someone, page)
    assert facts["counts"] == {"not tried": 150, "done": 100}
    assert facts["said"].endswith("; stopped by anna")
    assert mails.depth().parked == 150
    assert {deed.what for deed in audit_of(mails.store)} == {"redrive", "stop"}


def test_what_was_chosen_is_done_once_and_is_not_known_to_another_process(person, mails):
    someone = person("operator")
    page = asked(someone)
    begun(someone, page)
    again = someone.post("/act", fields_of(page.text))
    assert again.status_code == 409
    assert "it has begun already" in again.text
    other = person("operator").post("/act", fields_of(page.text))
    assert other.status_code == 404
    assert "in another process" in other.text
    assert someone.get("/run?id=none").status_code == 404
    assert someone.get("/api/v0/run?id=none").status_code == 404


def test_a_run_that_cannot_be_kept_does_nothing_and_says_why(person, store, mails):
    someone = person("operator")
    page = asked(someone)
    real = store.repeat

    def refuse(update, *given, **more):
        if update.key.set == AUDIT:
            raise Unavailable("the store is away")
        return real(update, *given, **more)

    store.repeat = refuse
    _, facts = begun(someone, page)
    assert facts["counts"] == {"not tried": 250}
    assert "the store is away" in facts["said"]
    assert mails.depth().parked == 250


def test_a_run_for_which_no_thread_can_be_started_has_not_begun_and_can_be_confirmed_again(
    person, clock, mails, monkeypatch
):
    someone = person("operator")
    page = asked(someone)
    held, real, left = fields_of(page.text)["run"], clock.spawn, [RuntimeError("can't start new thread")]

    def spawn(run, name):
        if name == "console-run" and left:
            raise left.pop()
        return real(run, name)

    monkeypatch.setattr(clock, "spawn", spawn)
    refused = someone.post("/act", fields_of(page.text))
    assert (refused.status_code, "nothing was done" in refused.text) == (503, True)
    facts = someone.get(f"/api/v0/run?id={held}").json()
    assert (facts["began"], facts["by"]) == (False, "")
    assert held not in someone.get("/queue?farm=iad&client=shop&name=orders").text
    assert begun(someone, page)[1]["counts"] == {"done": 250}


def test_a_choice_can_be_confirmed_after_others_were_made_and_runs_have_ended(person, mails):
    someone = person("operator")
    first = asked(someone, reason="exhausted", limit="10")
    path, _ = begun(someone, asked(someone, limit="1"))
    asked(someone)
    assert someone.get(path).status_code == 200, "a run that is over can still be seen"
    assert begun(someone, first)[1]["over"]


def test_many_of_them_are_kept_and_those_that_are_not_confirmed_make_room(person, mails):
    someone = person("operator")
    first = asked(someone)
    for _ in range(40):
        assert asked(someone).status_code == 200
    assert someone.post("/act", fields_of(first.text)).status_code == 404
    assert QueueRegistry(mails.store, "shop", farm_id="iad").get("orders").depth().parked == 250
