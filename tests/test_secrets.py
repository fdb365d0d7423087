"""No way out shows a password: reprs, messages, pickled errors, logs, the command's output, Spark's options."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import traceback

import aerospike
import pytest

import latchwork
from latchwork.cli import main
from latchwork.errors import InvalidRequest, LatchworkError
from latchwork.observe import observe
from latchwork.observe.base import Telemetry
from latchwork.queue import LargeQueue, QueueRegistry
from latchwork.spark.options import parse as spark_options
from latchwork.store import Key
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.connect import VARIABLE, as_store, hidden
from tests.cli.conftest import _logging_as_before  # noqa: F401 - a fixture

CANARY = "Tr0ub4dor"
URL = f"aerospike://me:{CANARY}@127.0.0.1:1/ns?connect_timeout=100&total_timeout=200"
PIECE = 5
"""So many letters in a row give a password away."""


def shows(text):
    """The piece of the canary that the text shows, if any."""
    pieces = [CANARY[at : at + PIECE] for at in range(len(CANARY) - PIECE + 1)]
    return next((piece for piece in pieces if piece in text), None)


def malformed():
    """URLs as they are after a slip of the hand: each character left out, and what has a meaning put in anywhere."""
    base = f"aerospike://me:{CANARY}@h:3000,b/ns?connections=4"
    yield from (base[:at] + base[at + 1 :] for at in range(len(base)))
    yield from (base[:at] + mark + base[at:] for at in range(len(base) + 1) for mark in "/?#@:[], \n%&=")
    yield from (
        base.replace(old, new) for old in ("@", "/ns", "h:3000", "://", "?") for new in ("", "@", "/", ":", "#")
    )
    for scheme in ("", "aero", "redis", "sqlite", "memory", "AEROSPIKE", "https", "file"):
        yield from (f"{scheme}{mark}me:{CANARY}@h/ns" for mark in ("", ":", ":/", "://", ":///", "@"))
        yield f"{scheme}://me:{CANARY}"
        yield f"{scheme}://me:{CANARY}/ns"
        yield f"{scheme}:{CANARY}" if scheme not in {"sqlite"} else f"{scheme}://{CANARY}@h/x"
    yield from (CANARY, f"me:{CANARY}", f"me:{CANARY}@h", f" {base}", f'"{base}"', f"{VARIABLE}={base}", base * 2)


def every_word(failure):
    """All that an error may end up as."""
    said = [str(failure), repr(failure), repr(failure.args), repr(getattr(failure, "details", ""))]
    # Without the frames, which show lines of the source and no values: they take three quarters of the time.
    said += ["".join(traceback.format_exception(failure, limit=0)), repr(copy.copy(failure)), repr(vars(failure))]
    return "\n".join([*said, *(pickle.dumps(failure, n).decode("latin-1") for n in range(pickle.HIGHEST_PROTOCOL + 1))])


def test_the_canary_is_found_where_it_is():
    assert shows(f"x{CANARY}y") == CANARY[:PIECE]
    assert shows(f"x{CANARY[2:8]}y")
    assert not shows("Tr0ub")[PIECE:]
    assert shows("") is None
    assert shows(every_word(LatchworkError("x", key=URL)))


def _error_of(call, url):
    try:
        return call(url), None
    except LatchworkError as failure:
        return None, failure


@pytest.mark.parametrize(
    "call", [latchwork.connect, as_store, AerospikeStore.from_url], ids=["connect", "as", "from_url"]
)
def test_no_malformed_url_shows_its_password(call):
    urls = dict.fromkeys(malformed())
    for url in urls:
        found, failure = _error_of(call, url)
        if failure is not None:
            assert shows(every_word(failure)) is None, (url, str(failure))
        else:  # what can be taken for the name of a host, a namespace or a file is one
            target = getattr(getattr(found, "_link", None), "target", None)
            named = f"{target.hosts}{target.namespace}" if target else str(getattr(found, "path", ""))
            assert shows(repr(found)) is None or shows(named), url
    assert len(urls) > 500


def test_a_url_is_shown_without_its_password_wherever_it_stands():
    for url in dict.fromkeys(malformed()):
        if not url.startswith("sqlite:") and "@" in url:
            assert shows(hidden(url).rpartition("@")[0]) is None, url


@pytest.fixture
def log():
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


class Everything(Telemetry):
    """Keeps all that it is told."""

    def __init__(self):
        self.told = []

    def record(self, event, value, labels):
        self.told.append(repr((event, value, labels)))

    def read(self, source):
        self.told.append(repr(source))

    def span(self, name, origins, attributes):
        self.told.append(repr((name, origins, attributes)))


@pytest.fixture(scope="module")
def _refusals():
    return {}


@pytest.fixture
def refused_at_once(_refusals, monkeypatch):
    """The real client tries to connect once with each configuration, and what it said is said again: a try takes 60 ms
    of processor time.
    """
    real = aerospike.client

    def client(config):
        said = _refusals.get(repr(config))
        if said is not None:
            raise said
        try:
            return real(config).connect()
        except aerospike.exception.AerospikeError as failure:
            _refusals[repr(config)] = failure
            raise

    monkeypatch.setattr(aerospike, "client", client)


@pytest.mark.usefixtures("refused_at_once")
@pytest.mark.parametrize("how", ["url", "file", "env"])
def test_a_store_that_cannot_be_reached_shows_no_password(how, tmp_path, monkeypatch, log):
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    secret.chmod(0o644)
    monkeypatch.setenv("DB_PASSWORD", CANARY)
    more = {"url": "", "file": f"&password_file={secret}", "env": "&password_env=DB_PASSWORD"}[how]
    store = latchwork.connect((URL if how == "url" else URL.replace(f":{CANARY}", "")) + more)
    failures = []
    for call in (
        store.describe, lambda: store.get(Key("s", "k")), lambda: store.query("s", "b", 1),
        lambda: QueueRegistry(store, "shop").queues(), lambda: LargeQueue.open(store, "q"),
    ):  # fmt: skip
        with pytest.raises(LatchworkError) as refused:
            call()
        failures.append(refused.value)
    words = [*map(every_word, failures), repr(store), str(store), repr(store._link.target), str(store._link.target)]
    words += [repr(store.with_policy(store.policy)), repr(QueueRegistry(store, "shop")), log.getvalue()]
    if how != "url":
        words.append(pickle.dumps(store).decode("latin-1"))
    for text in words:
        assert shows(text) is None, text
    assert "127.0.0.1:1/ns" in words[0]


def test_the_options_of_spark_show_no_password():
    options = spark_options({"store": URL, "queue": "q", "clientId": "c"})
    assert options.store == URL
    assert shows(repr(options)) is None
    whole = {"store": URL, "queue": "q", "clientId": "c"}
    for wrong in (
        {"store": URL},
        {**whole, "columns": "x"},
        {**whole, "store": f"memory:{CANARY}"},
        {**whole, "x": "y"},
    ):
        with pytest.raises(InvalidRequest) as refused:
            spark_options(wrong)
        assert shows(every_word(refused.value)) is None


COMMANDS = [
    ("stats", "--client", "c"), ("queue", "list", "--client", "c"), ("latch", "show", "n", "--client", "c"),
    ("doctor",), ("lock", "run", "l", "--timeout", "1", "--", "true"), ("-vv", "large", "info", "q"),
    ("leader", "status", "e"), ("--nonsense",), ("queue", "nonsense"),
]  # fmt: skip


@pytest.mark.usefixtures("refused_at_once")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("json", [(), ("--json",)], ids=["", "json"])
def test_no_command_shows_the_password_of_its_store(words, json, capfd, log):
    with pytest.raises(SystemExit) as ended:
        main(["--store", URL, *json, *words])
    told = capfd.readouterr()
    assert shows(told.out + told.err + log.getvalue()) is None
    assert ended.value.code not in {0, None}


@pytest.mark.usefixtures("refused_at_once")
def test_a_password_that_is_typed_is_told_to_be_seen_by_all(monkeypatch, capfd):
    def said(*words):
        with pytest.raises(SystemExit):
            main([*words, "leader", "status", "e"])
        return capfd.readouterr().err

    assert "password_file" in said("--store", URL)
    monkeypatch.setenv(VARIABLE, URL)
    assert "password_file" not in said()


def test_telemetry_is_told_no_password():
    telemetry = Everything()
    store = observe(latchwork.connect(URL), telemetry)
    with pytest.raises(LatchworkError):
        store.get(Key("s", "k"))
    assert telemetry.told
    assert shows("".join(telemetry.told)) is None
