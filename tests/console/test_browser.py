"""The console in a real browser: what a person on call does there, with a mouse, with the keyboard, and on a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import uvicorn

from latchwork.cli.bulk import Run
from latchwork.console import Secret, app
from latchwork.console.site import SCREENS as SITE_SCREENS
from latchwork.coord import FencedLock
from latchwork.queue import QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.stores import FaultyStore
from tests.cli.test_all_of import parked_in

from .conftest import fill

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = os.environ.get("LATCHWORK_AXE", "")
"""The file axe.min.js of the npm package axe-core."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
SECRET = "correct horse battery staple"
QUERY = "?farm=iad&client=shop&name=orders"
SCREENS = ("", *SITE_SCREENS)
CHOICE = f"/choose{QUERY}&side=parked&verb=redrive"
PATHS = (
    *(f"/{name}" for name in SCREENS), f"/queue{QUERY}", f"/messages{QUERY}", f"/message{QUERY}&id=plain-1",
    f"/messages{QUERY}&side=delayed", f"/act{QUERY}&verb=pause", CHOICE,
    "/act?verb=break&farm=iad&client=lock&name=lock+plain", f"/act{QUERY}&verb=resume",
    "/act?verb=step-down&farm=iad&client=election&name=office+plain",
    "/act?verb=trigger&farm=iad&client=shop&name=often", "/nothing",
)  # fmt: skip


@pytest.fixture
def store():
    return FaultyStore(MemoryStore(), {})


@pytest.fixture
def orders(store):
    return fill(QueueRegistry(store, "shop", farm_id="iad"))


@pytest.fixture
def served(store, orders):
    """The address of a console that is served; `served.stop()` ends it."""
    console = app({"iad": store}, ["shop"], authorize=Secret(SECRET, "admin", payloads=True), actions=True)
    server = uvicorn.Server(uvicorn.Config(console, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]

    class Served(str):
        __slots__ = ()

        def stop(self):
            server.force_exit = server.should_exit = True
            thread.join(10)

    address = Served(f"http://127.0.0.1:{port}")
    yield address
    address.stop()


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, served):
    """A page of somebody who has signed in; what its console complains of fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints = []
    page.on("console", lambda one: complaints.append(one.text) if one.type in {"error", "warning"} else None)
    page.on("pageerror", lambda one: complaints.append(str(one)))
    sign_in(page, served)
    yield page
    context.close()
    assert [one for one in complaints if not one.startswith(("Failed to load resource", "htmx:"))] == []


def sign_in(page, served):
    page.goto(served)
    page.fill("[name=who]", "anna")
    page.fill("[name=secret]", SECRET)
    page.click("main button")
    page.wait_for_selector("nav")


def says(page, text):
    page.get_by_text(text).first.wait_for()


def test_a_person_finds_out_why_a_queue_stands_still_and_mends_it(page, orders):
    orders.pause(by="ben@web-7")
    page.goto(page.url)
    says(page, "paused by ben@web-7")
    page.click("text=queues")
    page.click("td >> text=orders")
    says(page, "PAUSED by ben@web-7")
    page.click("#switch")
    says(page, "is the reason gone?")
    page.fill("[name=why]", "ticket 7")
    page.click("text=yes, resume orders")
    says(page, "resumed orders")
    page.click("nav >> text=audit")
    says(page, "ticket 7")
    assert QueueRegistry(orders.store, "shop", farm_id="iad").get("orders").concurrency == 1


def test_a_person_says_no_and_nothing_happens(page, served, orders):
    page.goto(f"{served}/queue{QUERY}")
    page.click("#switch")
    page.click("text=no >> nth=-1")
    says(page, "threads in each worker: 1")
    assert orders.store.scan("latchwork_audit") == []


def test_messages_are_filtered_chosen_and_redriven(page, served, orders):
    page.goto(f"{served}/messages{QUERY}")
    page.fill("[name=reason]", "exhausted")
    page.click("text=filter")
    page.click("text=choose all")
    assert page.locator("input[type=checkbox]:checked").count() == 3
    page.locator("input[type=checkbox]").first.uncheck()
    page.click("text=redrive the chosen")
    says(page, "redrive 2 messages of orders?")
    page.click("text=yes, redrive")
    says(page, "2 done")
    assert len(orders.parked.search()) == 1


def test_one_message_is_looked_up_and_discarded(page, served, orders):
    page.goto(f"{served}/queue{QUERY}")
    page.fill("[name=id]", "plain-1")
    page.click("text=look it up")
    says(page, "timeline")
    says(page, '{"secret": "plain 1"}')
    page.click("#discard")
    says(page, "This cannot be undone.")
    page.click("text=yes, discard")
    says(page, "discard plain-1: done")
    assert len(orders.parked.search()) == 2


def test_threads_are_scaled_and_the_form_is_not_lost_when_the_page_is_read_again(page, served, orders):
    page.goto(f"{served}/queue{QUERY}")
    page.fill("[name=n]", "7")
    with page.expect_response(lambda answer: "/queue" in answer.url):
        pass  # the page was read again by itself
    assert page.input_value("[name=n]") == "7"
    page.click("text=scale >> nth=-1")
    page.click("text=yes, scale orders from 1 to 7")
    says(page, "7 threads in each worker")


def test_an_open_page_shows_what_changes(page, served, orders):
    page.goto(f"{served}/queue{QUERY}")
    says(page, "threads in each worker: 1")
    orders.scale(4)
    says(page, "threads in each worker: 4")


def test_a_store_that_dies_under_an_open_page_is_shown_and_comes_back(page, served, store):
    page.goto(f"{served}/queues")
    says(page, "orders")
    real, store._operate_many = store._operate_many, away
    others = {name: getattr(store, name) for name in ("_operate", "_get", "_scan", "_query")}
    for name in others:
        setattr(store, name, away)
    says(page, "The store of iad is away")
    assert page.locator("td >> text=orders").count() == 1, "the last figures stay"
    page.click("nav >> text=locks")
    says(page, "is away")
    for name, verb in {**others, "_operate_many": real}.items():
        setattr(store, name, verb)
    page.get_by_text("The store of iad is away").wait_for(state="detached")


def away(*_, **__):
    from latchwork.errors import Unavailable

    raise Unavailable("the store is away")


def test_a_console_that_dies_is_said_by_the_page_itself(page, served):
    page.goto(f"{served}/queues")
    served.stop()
    says(page, "The console does not answer")


def test_whoever_is_signed_out_meanwhile_is_asked_again(page, served):
    page.goto(f"{served}/queues")
    page.context.clear_cookies()
    page.wait_for_selector("[name=secret]")


def test_the_keyboard_alone_is_enough(page, served, orders):
    page.goto(f"{served}/queues")
    reach(page, "orders")
    page.keyboard.press("Enter")
    says(page, "queue: orders")
    reach(page, "pause")
    page.keyboard.press("Enter")
    says(page, "pause orders?")
    reach(page, "yes, pause orders")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    page.keyboard.press("Enter")
    says(page, "paused orders")


def test_a_lock_is_broken_once_its_name_is_typed(page, orders):
    page.click("nav >> text=locks")
    page.click("#break0")
    says(page, "does not stop what the holder does")
    page.fill("[name=typed]", "another")
    page.click("text=yes, break")
    says(page, "the name of the lock was not typed")
    page.click("text=break it at once instead")
    says(page, "two may work at a time")
    page.fill("[name=typed]", "lock plain")
    page.fill("[name=why]", "web-1 hangs")
    page.click("text=yes, break")
    says(page, "can be taken now")
    page.click("text=back to locks")
    says(page, "broken by anna")
    assert FencedLock(orders.store, "lock plain").try_acquire() is not None


def test_a_party_that_will_not_come_is_counted_down(page, orders):
    page.click("nav >> text=latches")
    says(page, "shop/plain")
    page.fill("td [name=id]", "b")
    page.click("td >> text=count down")
    says(page, "no longer waits for b")
    page.click("text=yes, count-down b")
    says(page, "1 to go")


def test_a_delayed_message_is_cancelled(page, served, orders):
    page.goto(f"{served}/messages{QUERY}&side=delayed")
    page.click("text=plain-later")
    page.click("#cancel")
    page.click("text=yes, cancel")
    says(page, "cancel plain-later: done")
    assert orders.delayed.search() == []


def test_a_queue_is_paused_on_a_phone(page, served, orders):
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{served}/queues")
    page.click("td >> text=orders")
    page.click("#switch")
    page.click("text=yes, pause orders")
    says(page, "paused orders")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_all_that_match_are_counted_redriven_and_told_row_by_row(page, served, orders):
    parked_in(orders.registry, "orders", 230)
    page.goto(f"{served}/messages{QUERY}")
    says(page, "the first 200 of more")
    page.fill("[name=q]", "m-")
    page.click("text=filter")
    page.click("text=redrive all")
    says(page, "redrive 230 messages of orders?")
    says(page, "and no others")
    page.fill("[name=why]", "mended")
    page.click("text=yes, redrive 230 messages")
    says(page, "ended: redrive 230 of 230: 230 done")
    page.click("text=the outcome of each")
    says(page, '"outcome":"done"')
    assert len(orders.parked.search()) == 4


def test_a_run_that_goes_on_is_stopped(page, served, orders, monkeypatch):
    real, go_on = Run._take, threading.Event()

    def take(run, queue, part):
        go_on.wait(20)
        return real(run, queue, part)

    monkeypatch.setattr(Run, "_take", take)
    parked_in(orders.registry, "orders", 230)
    page.goto(f"{served}{CHOICE}")
    page.click("text=yes, redrive")
    page.click("#stop")
    page.wait_for_selector("#stop[disabled]")
    go_on.set()
    says(page, "stopped by anna")
    page.wait_for_selector("#stop", state="detached")
    assert len(orders.parked.search(limit=1000)) == 134


def test_pages_of_messages_lead_on(page, served, orders):
    parked_in(orders.registry, "orders", 230)
    page.goto(f"{served}/messages{QUERY}")
    first = set(page.locator("tbody a").all_inner_texts())
    with page.expect_navigation():
        page.click("#more")
    second = set(page.locator("tbody a").all_inner_texts())
    assert len(second) == 34
    assert not first & second
    assert first | second >= {f"m-{n}" for n in range(230)}


def test_a_schedule_is_run_now_paused_and_resumed(page, served, orders):
    ready = orders.depth().ready
    page.click("nav >> text=schedules")
    page.click("#trigger0")
    page.click("text=yes, trigger often")
    says(page, "published often@")
    assert orders.depth().ready == ready + 1
    page.click("text=back to schedules")
    page.click("#switch0")
    says(page, "none of them later")
    page.click("text=yes, pause-schedule often")
    page.click("text=back to schedules")
    says(page, "PAUSED by anna")
    page.click("#switch0")
    page.click("text=yes, resume-schedule often")
    says(page, "resumed often")
    assert orders.registry.schedule_states()[0].paused is None


def test_a_leader_steps_down(page, orders):
    page.click("nav >> text=elections")
    page.click("#stepdown0")
    says(page, "NO OTHER CANDIDATE")
    page.click("text=yes, step-down office plain")
    says(page, "another one is elected once its lease is over")


def reach(page, text):
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText || ''").strip() == text:
            return
    pytest.fail(f"Tab does not lead to {text}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_screen_fits_and_can_be_read_by_everybody(chromium, served, scheme, width):
    """Nothing is wider than the window; axe finds nothing, where it is there."""
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 740})
    page = context.new_page()
    try:
        page.goto(served)
        if AXE:
            assert violations(context, page) == [], "sign-in"
        sign_in(page, served)
        for path in PATHS:
            page.goto(served + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if AXE:
                assert violations(context, page) == [], path
        if AXE:
            page.evaluate("document.querySelector('main').setAttribute('role', 'nonsense')")
            assert violations(context, page) != [], "axe looks"
    finally:
        context.close()


def violations(context, page):
    """What axe finds; it is run past the policy of the page, which forbids it as any foreign script."""
    session = context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": Path(AXE).read_text()})
    script = "axe.run().then((found) => JSON.stringify(found.violations.map((one) => [one.id, one.nodes[0].html])))"
    found = session.send("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True})
    return json.loads(found["result"]["value"])


def test_a_script_in_a_name_does_not_run(chromium, page, served, store):
    registry = QueueRegistry(store, "shop", farm_id="iad")
    queue = registry.get("orders")
    queue.pause(by="<img src=x onerror='document.title=1'><script>document.title=2</script>")
    page.goto(f"{served}/queue{QUERY}")
    says(page, "<img src=x")
    assert re.match("queue", page.title())
