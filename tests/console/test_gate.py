"""What must not pass does not: hosts, origins, people, roles, confirmations; and what every response carries."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from hashlib import sha384
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from latchwork.cli import main
from latchwork.console import Access, ProxyHeader, Secret, app
from latchwork.console.actions import VERBS
from latchwork.console.gate import HEADERS
from latchwork.console.site import SCREENS
from latchwork.coord import CountDownLatch, FencedLock, LatchLevel
from latchwork.errors import InvalidRequest, OutcomeUnknown, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from tools.servers import free_ports

from .conftest import BASE, FORM, KEY, ORIGIN, Person, fields_of, serving

SECRET = "correct horse battery staple"
QUERY = "?farm=iad&client=shop&name=orders"
PATHS = (
    "/", *(f"/{name}" for name in SCREENS), f"/queue{QUERY}", f"/messages{QUERY}", f"/message{QUERY}&id=plain-1",
    *(f"/api/v0/{name}" for name in SCREENS), f"/act{QUERY}&verb=pause",
)  # fmt: skip
ODD = ("/nothing", "/static/nothing", "/static/../site.py", "/api/v0/nothing", "/queue", "/messages?side=x", "/act")


# ---- what every response carries


def test_each_response_has_the_headers_that_keep_a_browser_to_it(person, orders):
    admin = person("admin")
    for path in [*PATHS, *ODD, "/static/console.css", "/static/htmx.min.js"]:
        found, refused = admin.get(path), admin.get(path, Host="evil.example")
        assert (found.status_code == 200) == (path not in ODD), path
        assert refused.status_code == 421
        for one in (found, refused):
            assert {name: one.headers.get(name) for name in HEADERS} == HEADERS, path
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_script_that_is_not_ours_is_the_one_that_was_taken(person, orders):
    someone = person()
    (named,) = re.findall(r'integrity="sha384-([^"]+)"', someone.get("/").text)
    script = someone.http.get("/static/htmx.min.js").content
    assert b64encode(sha384(script).digest()).decode() == named


# ---- hosts and origins


def test_it_answers_to_its_own_names_alone_so_that_no_name_can_be_bound_to_it(person, orders):
    someone = person()
    for host in ("localhost:8765", "LOCALHOST", "127.0.0.1:1", "[::1]:8765"):
        assert someone.get("/queues", Host=host).status_code == 200, host
    for host in (
        "evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8765", "localhost@evil", "evil@localhost",
        "localhost:x", "localhost/evil", "", "0.0.0.0:8765", "[::1", "localhost.:8765",
    ):  # fmt: skip
        for path in ("/queues", "/static/console.css", "/api/v0/queues"):
            assert someone.get(path, Host=host).status_code == 421, host


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        (ORIGIN, True), ({"Origin": BASE}, True), ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://localhost:8765"}, True),  # a proxy has taken off the https
        ({}, False), ({"Origin": "null"}, False), ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://localhost:9999"}, False), ({"Origin": "http://localhost:8765.evil.example"}, False),
        ({"Origin": "file://localhost:8765"}, False), ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False), ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": BASE, "Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, False),
    ],
)  # fmt: skip
def test_what_changes_something_comes_from_its_own_pages(store, orders, headers, passes):
    person = Person(store, Secret(SECRET, "admin", seams=store.seams))
    person.post("/sign-in", {"secret": SECRET, "who": "anna"})
    fields = {**person.asks("pause")[0], "secret": SECRET, "who": "anna"}
    for path in ("/act", "/sign-out", "/sign-in"):
        assert (person.post(path, fields, headers).status_code in {200, 303}) == passes
        assert (person_sees(store).concurrency == 0) == passes


def person_sees(store):
    return QueueRegistry(store, "shop", farm_id="iad").get("orders")


def test_other_methods_are_refused(person, orders):
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        assert person("admin").http.request(method, "/queues", headers=ORIGIN).status_code == 405


# ---- who asks


@pytest.mark.parametrize("said", [None, "anna", {"name": "anna"}, True, RuntimeError("a secret")])
def test_whoever_is_not_let_in_sees_nothing(store, orders, said, caplog):
    def authorize(_):
        if isinstance(said, Exception):
            raise said
        return said

    person = Person(store, authorize)
    for path in PATHS:
        found = person.get(path)
        assert found.status_code == 403
        assert "orders" not in found.text
    assert person.post("/act", {"verb": "pause", **KEY}).status_code == 403
    assert "a secret" not in caplog.text


def test_an_application_that_decides_on_its_loop_is_asked_there(store, orders):
    async def authorize(request):
        return Access("anna") if request.headers.get("x-user") == "anna" else None

    person = Person(store, authorize)
    assert [person.get("/queues", **headers).status_code for headers in ({}, {"X-User": "anna"})] == [403, 200]


ROLES = {"viewer": set(), "operator": {verb for verb, role in VERBS.items() if role == "operator"}, "admin": set(VERBS)}
MORE = {
    "scale": {"n": "3"}, "redrive": {"side": "parked", "id": "plain-1"}, "discard": {"side": "parked", "id": "plain-1"},
    "cancel": {"side": "delayed", "id": "plain-later"}, "move": {"side": "parked", "id": "plain-1", "to": "by-hand"},
    "break": {"client": "lock", "name": "lock plain"}, "break-at-once": {"client": "lock", "name": "lock plain"},
    "step-down": {"client": "election", "name": "office plain"},
    **{verb: {"name": "often"} for verb in ("trigger", "pause-schedule", "resume-schedule")},
    "count-down": {"client": "latch", "name": "shop/plain", "id": "plain"},
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize(("role", "allowed"), [("viewer", True), ("operator", True), ("admin", True), ("admin", False)])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "stop"])  # of that: test_runs.py
def test_a_role_does_what_it_may_and_nothing_else_and_it_is_kept(person, orders, role, verb, allowed):
    store = orders.store
    if verb == "resume":
        orders.pause(by="b")
    if verb == "resume-schedule":
        orders.registry.pause_schedule("often", by="b")
    orders.registry.create(QueueConfig("by-hand", shards=1))
    someone = person(role, actions=allowed)
    before = contents(store)
    pages = ("/queue" + QUERY, f"/message{QUERY}&id=plain-1", "/locks", "/latches")
    shown = "".join(someone.get(one).text for one in pages)
    fields, page = someone.asks(verb, **MORE.get(verb, {}))
    if allowed and verb in ROLES[role]:
        assert page.status_code == 200
        assert contents(store) == before, "to ask changes nothing"
        done = someone.post("/act", {**fields, "why": "ticket 7", "typed": "lock plain"})
        assert done.status_code == 200, done.text
        (deed,) = (record.bins for record in store.scan("latchwork_audit"))
        assert (deed["who"], deed["why"], deed["outcome"], deed["farm"]) == ("anna", "ticket 7", "done", "iad")
        assert verb.startswith(deed["what"])
        key = {**KEY, **MORE.get(verb, {})}
        assert deed["target"].startswith(f"{key['client']}/{key['name']}")
        assert "anna" in someone.get("/audit").text
    else:
        assert page.status_code == 403
        ticket = person("admin").asks(verb, **MORE.get(verb, {}))[0]["ticket"]
        forced = {**KEY, "verb": verb, "n": "", "side": "", **MORE.get(verb, {}), "ticket": ticket}
        assert someone.post("/act", forced).status_code == 403
        assert contents(store) == before
        assert f"verb={verb}&" not in shown
        assert f'value="{verb}"' not in shown


@pytest.mark.parametrize("verb", ["break", "break-at-once"])
def test_a_lock_is_broken_once_its_name_is_typed_and_only_for_the_holder_that_was_shown(person, orders, clock, verb):
    anna, store = person("operator"), orders.store
    fields, page = anna.asks(verb, **MORE[verb])
    assert "does not stop what the holder does" in page.text
    assert "the name of the lock was not typed" in anna.post("/act", fields).text
    lock = FencedLock(store, "lock plain", lease=20)
    assert lock.try_acquire() is None
    said = anna.post("/act", {**fields, "typed": "lock plain"})
    assert "broken: lock plain can be taken" in said.text
    assert "nobody, broken by anna" in anna.get("/locks").text
    grant = lock.try_acquire()
    assert (grant is not None) == (verb == "break-at-once")
    again = anna.post("/act", {**fields, "typed": "lock plain"})
    assert "Nothing was done" in again.text, "that holder is gone"


def test_messages_are_moved_to_the_queue_that_was_shown(person, orders):
    by_hand, anna = orders.registry.create(QueueConfig("by-hand", shards=1)), person("operator")
    assert "give the queue" in anna.does("move", side="parked", id="plain-1").text
    fields, page = anna.asks("move", **MORE["move"])
    assert "move plain-1 of orders to by-hand?" in page.text
    assert "Nothing was done" in anna.post("/act", {**fields, "to": "orders"}).text
    assert "move plain-1: done" in anna.post("/act", fields).text
    assert [one.payload for one in by_hand.peek()] == [{"secret": "plain 1"}]
    assert anna.does("move", side="parked", id="plain-2", to="nowhere").status_code == 404
    assert len(orders.parked.search()) == 2


def test_a_party_that_is_counted_down_releases_who_waits_for_it(person, orders):
    anna = person("operator")
    assert anna.does("count-down", **MORE["count-down"]).status_code == 200
    assert "1 to go" in anna.get("/latches").text
    assert anna.does("count-down", **{**MORE["count-down"], "id": "nobody"}).status_code == 404
    assert "1 to go" in anna.get("/latches").text


def test_a_party_that_several_farms_have_is_counted_down_where_it_is_missing(person, orders):
    anna, farms, latch = person("operator"), ["iad", "lhr", "sin"], {"client": "latch", "name": "shop/eod"}
    iad, *_ = [
        CountDownLatch.get_or_create(
            orders.store, "shop", "eod", parties=["load"], farm_id=farm, level=LatchLevel.XDC, farms=farms
        )
        for farm in farms
    ]
    iad.count_down(party="load")
    assert "0 to go in lhr; it is missing in sin too" in anna.does("count-down", **latch, id="load").text
    assert iad.progress().counts == {"iad": 0, "lhr": 0, "sin": 1}
    assert "0 to go in sin" in anna.does("count-down", **latch, id="load").text
    assert iad.progress().released


def contents(store):
    sets = [*store.sets()] if hasattr(store, "sets") else ["latchwork_audit"]
    return {(record.key.set, record.key.name): dict(record.bins) for one in sets for record in store.scan(one)}


def test_nothing_is_done_without_the_confirmation_that_was_shown(store, person, orders, clock):
    anna = person("operator", key=b"k" * 16)
    fields, _ = anna.asks("discard", side="parked", id="plain-1")
    ben = Person(store, Access("ben", "operator"), key=b"k" * 16)
    wrong = [
        {**fields, "ticket": ""},
        {**fields, "ticket": "9" * 14 + "." + "0" * 64},
        {**fields, "ticket": fields["ticket"] + "0"},
        {**fields, "id": "plain-2"},
        {**fields, "side": "sideline"},
        {**fields, "verb": "redrive"},
    ]
    for forged in wrong:
        assert "Nothing was done" in anna.post("/act", forged).text
    assert "Nothing was done" in ben.post("/act", fields).text, "the ticket is somebody else's"
    assert "Nothing was done" in person("operator").post("/act", fields).text, "another console has another key"
    clock.advance(601)
    assert "Nothing was done" in anna.post("/act", fields).text, "it is too old"
    assert len(orders.parked.search()) == 3
    again, _ = anna.asks("discard", side="parked", id="plain-1")
    assert anna.post("/act", again).status_code == 200
    assert len(orders.parked.search()) == 2


def test_what_has_changed_since_it_was_confirmed_is_asked_again(person, orders):
    anna = person("operator")
    fields, page = anna.asks("scale", n="5")
    assert "scale orders from 1 to 5?" in page.text
    orders.scale(3)
    anna.http.get("/queues")
    orders.store.seams.advance(2)
    asked = anna.post("/act", fields)
    assert "Nothing was done" in asked.text
    assert "scale orders from 3 to 5?" in asked.text
    assert anna.post("/act", fields_of(asked.text)).status_code == 200


def test_the_same_key_lets_another_process_take_the_confirmation(person, orders):
    one, other = (person("operator", key=b"k" * 16) for _ in range(2))
    assert "Nothing was done" not in other.post("/act", one.asks("pause")[0]).text


# ---- a secret


def test_a_secret_signs_a_person_in_and_the_cookie_is_for_the_browser_alone(store, orders):
    person = Person(store, Secret(SECRET, "operator", seams=store.seams))
    assert person.get("/queues").headers["location"] == "/sign-in"
    assert person.get("/api/v0/queues").status_code == 401
    assert person.get("/sign-in").status_code == 200
    answer = person.post(
        "/sign-in", {"secret": SECRET, "who": "anna <b>"}, ORIGIN | {"Origin": "https://localhost:8765"}
    )
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=lax", "secure", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert SECRET not in cookie
    person.http.cookies.clear()
    person.post("/sign-in", {"secret": SECRET, "who": "anna <b>"})
    assert "anna &lt;b&gt;, operator" in person.get("/queues").text
    store.seams.advance(13 * 3_600)
    assert person.get("/queues").status_code == 303, "it is over"


def test_a_cookie_that_was_changed_is_none(store, orders):
    person = Person(store, Secret(SECRET, seams=store.seams))
    person.post("/sign-in", {"secret": SECRET, "who": "anna"})
    cookie = person.http.cookies["latchwork_console"]
    for forged in ("", "..", "1.anna.", cookie + "0", cookie.replace("anna", "bens"), "9" + cookie, "x.y.z"):
        person.http.cookies.clear()
        assert person.get("/queues", Cookie=f"latchwork_console={forged}").status_code == 303
    assert person.get("/queues", Cookie=f"latchwork_console={cookie}").status_code == 200
    odd = person.http.get("/queues", headers=[(b"cookie", b"latchwork_console=x.y.\xff")])
    assert odd.status_code == 303
    other = Person(store, Secret(SECRET + "!", seams=store.seams))
    assert other.get("/queues", Cookie=f"latchwork_console={cookie}").status_code == 303, "the secret was changed"


@pytest.mark.parametrize("way", ["form", "bearer"])
def test_wrong_secrets_make_their_sender_wait(store, orders, way):
    person = Person(store, Secret(SECRET, seams=store.seams))

    def tries(secret):
        if way == "bearer":
            return person.get("/api/v0/queues", Authorization=f"Bearer {secret}").status_code
        return person.post("/sign-in", {"secret": secret, "who": "a"}).status_code

    refused, welcome = (401, 200) if way == "bearer" else (403, 303)
    assert [tries(f"wrong {n}") for n in range(5)] == [refused] * 5
    late = 429 if way == "bearer" else 403
    assert tries(SECRET) == late, "also with the right one"
    store.seams.advance(1.1)
    assert tries("wrong") == refused
    assert tries(SECRET) == late
    store.seams.advance(61)
    assert tries(SECRET) == welcome


def test_no_secret_and_no_payload_is_logged(store, orders, caplog):
    caplog.set_level(logging.DEBUG)
    person = Person(store, Secret(SECRET, "admin", payloads=True, seams=store.seams))
    person.post("/sign-in", {"secret": "wrong and secret too", "who": "anna"})
    person.get("/queues", Authorization=f"Bearer {SECRET}")
    person.post("/sign-in", {"secret": SECRET, "who": "anna"})
    assert "plain 1" in person.get(f"/message{QUERY}&id=plain-1").text
    person.does("discard", side="parked", id="plain-1")
    said = "\n".join(f"{record.getMessage()} {record.args}" for record in caplog.records)
    assert SECRET not in said
    assert "wrong and secret" not in said
    assert "plain 1" not in said
    assert SECRET not in repr(vars(Secret(SECRET))["_role"])


# ---- a proxy


@pytest.mark.parametrize(
    ("peers", "headers", "status"),
    [
        (["testclient"], [("X-User", "anna")], 200),
        (["10.0.0.1"], [("X-User", "anna")], 403),
        (["testclient"], [], 403),
        (["testclient"], [("X-User", " ")], 403),
        (["testclient"], [("X-User", "anna"), ("X-User", "root")], 403),
        (["10.0.0.1"], [("X-User", "anna"), ("X-Forwarded-For", "10.0.0.1"), ("Forwarded", "for=10.0.0.1")], 403),
    ],
)
def test_a_proxys_header_is_believed_from_its_address_alone(store, orders, peers, headers, status):
    person = Person(store, ProxyHeader("X-User", peers))
    assert person.http.get("/queues", headers=headers).status_code == status


# ---- mounted, and as a command


def test_it_can_be_mounted_into_another_application(store, orders):
    inner = app({"iad": store}, ["shop"], authorize=lambda _: Access("anna", "operator"), actions=True)
    outer = TestClient(Starlette(routes=[Mount("/ops", inner)]), base_url=BASE, follow_redirects=False)
    page = outer.get("/ops/queues").text
    assert 'href="/ops/static/console.css"' in page
    assert 'href="/ops/queue?farm=iad' in page
    assert outer.get("/ops/static/console.css").status_code == 200
    fields = fields_of(outer.get("/ops/act", params={"verb": "pause", **KEY}).text)
    assert outer.post("/ops/act", content=urlencode(fields), headers=FORM | ORIGIN).status_code == 200
    assert person_sees(store).concurrency == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"authorize": None}, {"key": b"short"}, {"hosts": "localhost"}, {"hosts": []}, {"stores": {}},
        {"actions": "yes"},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_it_is_served(wrong):
    settings = {"stores": {"iad": MemoryStore()}, "authorize": lambda _: None, **wrong}
    with pytest.raises(InvalidRequest):
        app(**settings)
    with pytest.raises(InvalidRequest):
        Secret("short")
    with pytest.raises(InvalidRequest):
        ProxyHeader("X-User", "10.0.0.1")
    with pytest.raises(InvalidRequest):
        Access("anna", "root")


@pytest.mark.parametrize(
    "options",
    [
        ("--host", "0.0.0.0"), ("--host", "::"), ("--host", "10.1.2.3"), ("--host", "example.com"), ("--payloads",),
        ("--allow-actions",), ("--role", "admin"), ("--proxy-header", "X-User"), ("--proxy-peer", "10.0.0.1"),
        ("--secret-file", "/nowhere"),
    ],
)  # fmt: skip
def test_the_command_serves_nothing_but_figures_to_this_machine_without_authentication(monkeypatch, options, capsys):
    monkeypatch.delenv("LATCHWORK_CONSOLE_SECRET", raising=False)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it is served"))
    with pytest.raises(SystemExit) as ended:
        main(["--store", "memory:", "console", "--client", "shop", *options])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_serves_viewers_on_this_machine(monkeypatch):
    monkeypatch.delenv("LATCHWORK_CONSOLE_SECRET", raising=False)
    (port,), served = free_ports(1), serving(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["--store", "memory:", "console", "--client", "shop", "--port", str(port)])
    assert not ended.value.code
    assert served.addresses == ["127.0.0.1"]
    assert not served.config.access_log
    assert not served.config.proxy_headers
    http = TestClient(served.config.app, base_url="http://127.0.0.1:8765")
    page = http.get("/queues")
    assert page.status_code == 200
    assert ", viewer" in page.text
    assert http.get("/act", params={"verb": "pause", **KEY}).status_code in {403, 404}


def test_a_look_at_the_headers_of_a_page_is_no_wrong_secret(store, orders):
    """A monitor asks so, and another site can: nobody else may be kept from signing in by that."""
    person = Person(store, Secret(SECRET, "admin", seams=store.seams))
    for _ in range(9):
        assert person.http.head("/sign-in").status_code == 200
    assert person.http.head("/").status_code == 303
    assert person.post("/sign-in", {"secret": SECRET, "who": "anna"}).status_code == 303


def test_a_confirmation_that_is_sent_twice_is_done_once_and_tells_what_became_of_it(person, orders):
    """By a double click the second answer is the one that is shown; a page that is loaded again is sent again."""
    anna = person("operator")
    for verb, side in (("trigger", ""), ("redrive", "parked"), ("scale", "")):
        before = orders.depth().ready
        fields, _ = anna.asks(verb, **{**MORE[verb], "side": side})
        first, second = anna.post("/act", fields), anna.post("/act", fields)
        (said,) = re.findall(r'role="status">([^<]*)</p>', first.text)
        assert f"When this was confirmed first: {said}" in second.text
        assert orders.depth().ready - before == (verb != "scale")
    assert len(list(orders.store.scan("latchwork_audit"))) == 3
    anew, _ = anna.asks("trigger", **MORE["trigger"])
    assert "published" in anna.post("/act", anew).text, "who asks anew, in the same second, is not meant"


def test_a_confirmation_that_comes_twice_at_one_moment_is_done_once(person, orders, monkeypatch):
    anna, real, told = person("operator"), QueueRegistry.trigger_schedule, []
    fields, _ = anna.asks("trigger", **MORE["trigger"])

    def trigger(registry, name):
        if not told:
            told.append("")
            told[0] = anna.post("/act", fields).text
        return real(registry, name)

    monkeypatch.setattr(QueueRegistry, "trigger_schedule", trigger)
    before = orders.depth().ready
    assert anna.post("/act", fields).status_code == 200
    assert "it has begun" in told[0]
    assert orders.depth().ready == before + 1


@pytest.mark.parametrize(("failure", "is_done"), [(Unavailable("away"), True), (OutcomeUnknown("lost"), False)])
def test_a_confirmation_that_failed_may_be_sent_again_unless_it_may_have_been_done(
    person, orders, monkeypatch, failure, is_done
):
    anna, real, failures = person("operator"), QueueRegistry.trigger_schedule, [failure]
    fields, _ = anna.asks("trigger", **MORE["trigger"])

    def trigger(registry, name):
        if failures:
            raise failures.pop()
        return real(registry, name)

    monkeypatch.setattr(QueueRegistry, "trigger_schedule", trigger)
    before = orders.depth().ready
    assert anna.post("/act", fields).status_code == 503
    assert ("published" in anna.post("/act", fields).text) == is_done
    assert orders.depth().ready == before + is_done
