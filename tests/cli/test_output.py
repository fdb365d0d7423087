"""Nothing that is stored or given steers the terminal, hides, or turns text around: one filter for all output."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import unicodedata
from types import SimpleNamespace

import pexpect
import pytest

from latchwork.coord import CountDownLatch, FencedLock, ReadWriteLock, Semaphore
from latchwork.coord.latch.progress import line
from latchwork.plain import one_line
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry
from latchwork.store.connect import connect

EVIL = "e\x1b[2Jv\x1b]0;t\x07i\u202el\u2066\u200b\u200d\u2060\ufeff\x9b31m\x85\u2028z\U000e0041\r\n\tend"
SHOP = ("--client", "shop")
VISIBLE = set(map(chr, (0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD)))
"""Of a format's category, and yet seen: signs before and after numbers."""


def steering(text, allowed="\n"):
    """The characters of the text that nobody sees, but for those that end lines and part columns."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [char for char in text if char not in allowed and unicodedata.category(char) in kinds]


def test_every_character_that_nobody_sees_is_escaped_and_no_other():
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and char not in VISIBLE and code < 0x11000:
            assert one_line(f"a{char}b") == "a" + char.encode("unicode_escape").decode() + "b", hex(code)
    for text in ("plain text", "naïve ☃ 漢字 ümlaut", "العربية", "שלום", "emoji 🎉", "a\\b 'c' \"d\"", "€1,234.50"):
        assert one_line(text) == text


@pytest.fixture
def evil_store(sqlite_url):
    """A store in which every text that may be stored steers a terminal."""
    store = connect(sqlite_url)
    latch = CountDownLatch.create(store, "shop", EVIL, parties=[EVIL, "other"], ttl=600)
    latch.count_down(party=EVIL)
    CountDownLatch.create(store, "shop", "waiting", parties=[EVIL], ttl=600)
    FencedLock(store, "election", owner=EVIL, lease=600).acquire(5)
    FencedLock(store, "shop-sweeper", owner=EVIL, lease=600).acquire(5)
    Semaphore(store, EVIL, permits=2, owner=EVIL, lease=600).acquire(timeout=5)
    ReadWriteLock(store, EVIL, owner=EVIL, lease=600).write(5)
    bus = LargeQueue.create(store, "bus", 100)
    bus.enqueue_many([EVIL, {EVIL: [EVIL]}])
    registry = QueueRegistry(store, "shop")
    for queue in (
        registry.create(QueueConfig(EVIL, retry=False, shards=1)),
        registry.create(QueueConfig("q", retry=False, shards=1)),
    ):
        queue.publish_many([EVIL, {EVIL: EVIL}], headers={EVIL: EVIL}, message_ids=[f"{EVIL}1", f"{EVIL}2"])
        (taken,) = queue.receive(1)
        taken.nack("exception", error=EVIL)
    raw = registry.create(QueueConfig("raw", retry=False, shards=1, codec="bytes"))
    raw.publish_many([EVIL.encode(), b"\x1b[2J\xff"])
    yield store
    store.close()


COMMANDS = {
    "latch show": ("latch", "show", EVIL, *SHOP),
    "latch wait": ("latch", "wait", EVIL, *SHOP, "--timeout", "0"),
    "latch create": ("latch", "create", EVIL, *SHOP, "--count", "1"),
    "latch delete": ("latch", "delete", EVIL, *SHOP),
    "latch gone": ("latch", "show", f"no-{EVIL}", *SHOP),
    "leader status": ("leader", "status", "election"),
    "semaphore show": ("semaphore", "show", EVIL),
    "rwlock show": ("rwlock", "show", EVIL),
    "large read": ("large", "read", "bus", "1"),
    "large dequeue": ("large", "dequeue", "bus", "-n", "5"),
    "large info": ("large", "info", f"no-{EVIL.strip()}"),
    "queue list": ("queue", "list", *SHOP),
    "queue stats": ("queue", "stats", EVIL, *SHOP),
    "queue peek": ("queue", "peek", EVIL, *SHOP),
    "queue peek sideline": ("queue", "peek", EVIL, *SHOP, "--side", "sideline"),
    "queue pause": ("queue", "pause", EVIL, *SHOP),
    "queue wait": ("queue", "wait", EVIL, *SHOP, "--depth", "1", "--timeout", "1"),
    "queue consume": ("queue", "consume", EVIL, *SHOP, "--timeout", "0"),
    "queue redrive": ("queue", "redrive", EVIL, *SHOP, "--dry-run"),
    "stats": ("stats", *SHOP),
    "doctor": ("doctor", *SHOP),
    "an unknown queue": ("queue", "stats", f"no-{EVIL}", *SHOP),
    "an unknown option": ("queue", "stats", f"--{EVIL}"),
    "an unknown store": ("--store", f"sqlite:/{EVIL}/x", "stats", *SHOP),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("what", COMMANDS)
def test_no_command_passes_on_what_steers_a_terminal(lw, evil_store, what):
    done = lw(*COMMANDS[what])
    assert steering(done.out, "\n\t") == []
    assert steering(done.err) == []
    assert "\tend" not in done.out
    assert "Traceback" not in done.err


@pytest.mark.matrix
@pytest.mark.parametrize("what", COMMANDS)
def test_as_json_the_output_is_one_clean_document(lw, evil_store, what):
    done = lw("--json", *COMMANDS[what])
    assert steering(done.out) == []
    json.loads(done.out)


SEEN = {
    "latch wait": ("latch", "wait", "waiting", *SHOP, "--timeout", "0.5"),
    "consume raw": ("queue", "consume", "raw", *SHOP, "--timeout", "0"),
    "stats live": ("stats", *SHOP, "--watch", "--rounds", "1"),
    **{name: COMMANDS[name] for name in ("queue list", "queue peek sideline", "stats", "latch show", "large dequeue")},
}
OWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
"""What a terminal is told for colours, the bar, and the live table."""


@pytest.mark.matrix
@pytest.mark.parametrize("what", SEEN)
def test_on_a_terminal_nothing_stored_steers_it(evil_store, sqlite_url, warm, what):
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    child = warm.on_terminal("--store", sqlite_url, *SEEN[what], size=(50, 400), env=environment)
    child.expect(pexpect.EOF)
    child.wait()
    assert "\x1b[2J" not in child.before
    assert "\x1b]0" not in child.before
    assert steering(OWN.sub("", child.before)) == []


def test_bytes_in_a_pipe_are_given_as_they_are(evil_store, lw):
    assert EVIL in lw("queue", "consume", "raw", *SHOP, "--timeout", "0").out


def test_what_is_logged_is_filtered_too(lw, evil_store, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # of pytest, beside which the command sets up none
    lw("-vv", "stats", *SHOP)
    handler = logging.getLogger().handlers[-1]
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "queue %s", (EVIL,), None)
    assert steering(handler.format(record)) == []
    try:
        raise ValueError(EVIL)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    assert steering(handler.format(record)) == []
    assert "Traceback" in handler.format(record)


def test_the_bar_of_a_wait_is_filtered():
    progress = SimpleNamespace(remaining=1)
    assert steering(line(progress, 2, [EVIL], 400)) == []


def test_who_leads_is_still_read(lw, evil_store):
    assert "e\\x1b[2Jv" in lw("leader", "status", "election").out
