"""No text that a user gives is a command of the server's: a name that would begin one is refused.

The commands of the info protocol are lines, so a newline in a name would begin one, such as that which empties a
namespace. `test_the_server_takes_a_line_in_a_name_for_a_command` shows that this server does take them.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from latchwork.cli import main
from latchwork.coord import CountDownLatch, CountUpDownLatch, FencedLock, LatchLevel, LeaseElection
from latchwork.errors import InvalidRequest, LatchworkError
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.spark import SparkLatch
from latchwork.spark.options import parse
from latchwork.store import Exists, Key, MapPut, MemoryStore, Put
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.aerospike import info as aerospike_info
from latchwork.store.model.expr import Bin, has
from latchwork.testing.stores import CountingStore
from tests.cli.commands import command_names
from tests.conftest import PATIENT

SEPARATORS = ("\n", "\r", "\t", "\x7f", "\x9f", ";", ":", "=", ",")
CANARY = Key("canary", "alive")


def evil(namespace):
    """Names that are commands, as a whole or in part."""
    empty, one = f"truncate-namespace:namespace={namespace}", f"truncate:namespace={namespace};set={CANARY.set}"
    return [f"x\n{empty}\n", f"x\n{one}\nnamespaces", f"\n{empty}", f"x;set={CANARY.set}"]


def _operate_under(store, name):
    with FencedLock(store, "l").acquire(5) as grant:
        grant.operate(CANARY, Put("n", 1), bin=name)


# ---- what takes part in a name of a set, bin, index or namespace: refused, before any I/O

NAMES = {
    "client id of a registry": QueueRegistry,
    "farm id of a registry": lambda s, name: QueueRegistry(s, "c", farm_id=name),
    "farm id of a latch": lambda s, name: CountDownLatch.create(s, "c", "l", 1, farm_id=name),
    "farms of a latch": lambda s, name: CountDownLatch.create(
        s, "c", "l", 1, farms=["local", name], level=LatchLevel.XDC
    ),
    "set suffix of a latch": lambda s, name: CountUpDownLatch.create(s, "c", "l", 1, set_suffix=name),
    "farm id of a Spark latch": lambda s, name: SparkLatch.create(s, "c", "job", 1, farm_id=name),
    "name of a large queue": lambda s, name: LargeQueue.create(s, name, 10),
    "name of a large queue to be opened": LargeQueue.open,
    "set of a record": lambda s, name: s.get(Key(name, "k")),
    "set of records": lambda s, name: s.get_many([Key(name, "k")]),
    "set of a write": lambda s, name: s.operate(Key(name, "k"), Put("n", 1), exists=Exists.ANY),
    "set of a removal": lambda s, name: s.delete(Key(name, "k")),
    "bin of a read": lambda s, name: s.get(Key("s", "k"), name),
    "bin of a write": lambda s, name: s.operate(Key("s", "k"), Put(name, 1), exists=Exists.ANY),
    "bin of a map": lambda s, name: s.operate(Key("s", "k"), MapPut(name, "k", 1), exists=Exists.ANY),
    "bin of a guard": lambda s, name: s.operate(Key("s", "k"), Put("n", 1), when=Bin(name).eq(1)),
    "bin of a guard on a map": lambda s, name: s.operate(Key("s", "k"), Put("n", 1), when=has(name, "k")),
    "bin of a fence": _operate_under,
    "set of an index": lambda s, name: s.ensure_index(name, "n"),
    "bin of an index": lambda s, name: s.ensure_index("s", name),
    "set of a query": lambda s, name: s.query(name, "n", 1),
    "bin of a query": lambda s, name: s.query("s", name, 1),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("what", NAMES)
def test_a_name_that_would_end_a_command_is_refused_before_any_io(what, separator):
    store = CountingStore(MemoryStore())
    if "fence" in what:
        FencedLock(store, "l").acquire(1).release()
        store.reset()
    with pytest.raises(InvalidRequest) as refused:
        NAMES[what](store, f"x{separator}y")
    told = str(refused.value)
    assert repr(separator) in told
    assert "leave" in told
    assert "no control character and none of ; : = ," in told
    assert store.total <= (2 if "fence" in what else 0)


@pytest.mark.parametrize(
    "name", ["D_LTCH#distributed_latch", "éà", "a b", "a.b/c|d-e_f#g$h@i!j*k(l)[m]{n}<o>?", "漢字"]
)
def test_every_other_name_is_taken_as_it_was(name):
    store = MemoryStore()
    key = Key(name, "k\nk;:=,")
    store.operate(key, Put("count#éab", 1), Put("v", "a\nb;c"), exists=Exists.CREATE)
    assert store.get(key).bins == {"count#éab": 1, "v": "a\nb;c"}
    LargeQueue.create(store, f"q{name}", 5)


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_namespace_that_would_end_a_command_is_refused(separator):
    with pytest.raises(InvalidRequest, match="namespace"):
        AerospikeStore(object(), f"test{separator}x")
    if separator not in "\n\r\t":  # which a URL loses, as a secret is often read with the end of its line
        with pytest.raises(InvalidRequest, match="namespace"):
            AerospikeStore.from_url(f"aerospike://db/test{separator}x")


class NeverAsked:
    """A client that nothing may reach."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was called")


@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_info_layer_refuses_what_it_cannot_quote(separator):
    name, seams = f"x{separator}y", MemoryStore().seams
    for ask in (
        lambda: aerospike_info.describe(NeverAsked(), name),
        lambda: aerospike_info.ensure_index(NeverAsked(), name, ("s", "b", str), seams),
        lambda: aerospike_info.ensure_index(NeverAsked(), "ns", (name, "b", str), seams),
        lambda: aerospike_info.ensure_index(NeverAsked(), "ns", ("s", name, str), seams),
        lambda: aerospike_info._is_ready(NeverAsked(), "ns", name),
        lambda: aerospike_info._is_there(NeverAsked(), name, "i", "d"),
    ):
        with pytest.raises(InvalidRequest, match="leave"):
            ask()


# ---- a real server, and every text that a user may give


def _sharded(store, name, **texts):
    queue = QueueRegistry(store, "inj").create(
        QueueConfig(texts.pop("queue", "q"), shards=1, **texts.pop("config", {}))
    )
    queue.publish({"p": name}, **texts)
    for delivery in queue.receive(1):
        delivery.nack("rejected", error=name)
    queue.peek(5)
    queue.sideline.peek(5)
    queue.redrive(1, reason=name)


def _spark(store, **texts):
    url = str(store._link.target.url)
    parse({"store": url, "queue": "q", "clientId": "c", **texts}).open()


TEXTS = {
    **NAMES,
    "client id of a latch": lambda s, name: CountDownLatch.create(s, name, "l", 1).delete(),
    "id of a latch": lambda s, name: CountDownLatch.create(s, "c", name, 1).wait(0),
    "party": lambda s, name: CountDownLatch.create(s, "c", s.seams.unique(), parties=[name]).count_down(party=name),
    "job of a Spark latch": lambda s, name: SparkLatch.create(s, "c", name, 1).counts(),
    "phase of a Spark latch": lambda s, name: SparkLatch.create(s, "c", "job", 1, phase=name).counts(),
    "name of a lock": lambda s, name: FencedLock(s, name).acquire(5).release(),
    "owner of a lock": lambda s, name: FencedLock(s, "l", owner=name).acquire(5).release(),
    "name of an election": lambda s, name: LeaseElection(s, name).run(lambda _: None, timeout=5),
    "candidate": lambda s, name: LeaseElection(s, "e", candidate=name).run(lambda _: None, timeout=5),
    "value and transaction of a large queue": lambda s, name: LargeQueue.open_or_create(s, "inj-bus", 10).enqueue(
        name, txn_id=name, overwrite_if_full=True
    ),
    "group of a large queue": lambda s, name: LargeQueue.open_or_create(s, "inj-bus", 10).group(name).drop(),
    "name of a sharded queue": lambda s, name: _sharded(s, name, queue=name),
    "kind of handler": lambda s, name: _sharded(s, name, queue="handled", config={"handler_type": name}),
    "key of a message": lambda s, name: _sharded(s, name, key=name),
    "headers of a message": lambda s, name: _sharded(s, name, headers={name: name}),
    "id of a message": lambda s, name: _sharded(s, name, message_id=name),
    "scope of a ledger": lambda s, name: Ledger(
        QueueRegistry(s, "inj").create(QueueConfig("led", shards=1)), name
    ).publish(0, [Outgoing(name, message_id=name)]),
    "name of a record": lambda s, name: s.operate(Key("inj", name), Put("n", name), exists=Exists.ANY),
    "value of a query": lambda s, name: (s.ensure_index("inj", "n"), s.query("inj", "n", name)),
    "options of Spark": lambda s, name: _spark(s, clientId=name),
    "farm of Spark": lambda s, name: _spark(s, farmId=name),
    "queue of Spark": lambda s, name: _spark(s, queue=name),
    "namespace": lambda s, name: AerospikeStore(s._link.connect(), name).describe(),
    "namespace of a write": lambda s, name: AerospikeStore(s._link.connect(), name).operate(CANARY, Put("n", 1)),
    "namespace of an index": lambda s, name: AerospikeStore(s._link.connect(), name).ensure_index("s", "b"),
    "namespace in a URL": lambda s, name: AerospikeStore.from_url(f"{s._link.target.url}{name}").describe(),
}  # fmt: skip

C = ("--client", "inj")
COMMANDS = {
    "latch create": lambda n: ("latch", "create", n, "--client", n, "--party", n, "--farm", n, "--farms", n,
                               "--level", "xdc"),
    "latch count-down": lambda n: ("latch", "count-down", n, "--client", n, "--party", n),
    "latch show": lambda n: ("latch", "show", n, *C, "--farm", n),
    "latch list": lambda n: ("latch", "list", "--client", n),
    "latch wait": lambda n: ("latch", "wait", n, *C, "--timeout", "0"),
    "latch delete": lambda n: ("latch", "delete", n, "--client", n),
    "lock run": lambda n: ("lock", "run", n, "--timeout", "5", "--", "true", n),
    "lock show": lambda n: ("lock", "show", n),
    "lock break": lambda n: ("lock", "break", n, "--fence", "1"),
    "lock list": lambda _: ("lock", "list"),
    "leader run": lambda n: ("leader", "run", n, "--timeout", "5", "--", "true", n),
    "leader step-down": lambda n: ("leader", "step-down", n, "--epoch", "1", "--why", n),
    "leader status": lambda n: ("leader", "status", n),
    "large create": lambda n: ("large", "create", n, "10"),
    "large info": lambda n: ("large", "info", n),
    "large enqueue": lambda n: ("large", "enqueue", n, n),
    "large dequeue": lambda n: ("large", "dequeue", n),
    "large read": lambda n: ("large", "read", n, "1"),
    "queue list": lambda n: ("queue", "list", "--client", n),
    "queue list, farm": lambda n: ("queue", "list", *C, "--farm", n),
    "queue create": lambda n: ("queue", "create", n, *C, "--shards", "1"),
    "queue create, client": lambda n: ("queue", "create", "q", "--client", n),
    "queue publish": lambda n: ("queue", "publish", "q", json.dumps(n), *C, "--key", n, "--header", f"{n}={n}"),
    "queue publish, unique": lambda n: ("queue", "publish", "q", "1", *C, "--unique", n),
    "queue publish, queue": lambda n: ("queue", "publish", n, "1", *C),
    "queue peek": lambda n: ("queue", "peek", n, *C, "--side", n),
    "queue consume": lambda n: ("queue", "consume", n, *C, "--timeout", "0", "--", "true", n),
    "queue redrive": lambda n: ("queue", "redrive", "q", *C, "--reason", n),
    "queue redrive, id": lambda n: ("queue", "redrive", "q", *C, "--id", n),
    "queue search": lambda n: ("queue", "search", "q", *C, "--key", n, "--header", f"{n}={n}"),
    "queue search, side": lambda n: ("queue", "search", "q", *C, "--side", n),
    "queue discard": lambda n: ("queue", "discard", "q", *C, "--id", n),
    "queue cancel": lambda n: ("queue", "cancel", "q", *C, "--id", n),
    "queue result": lambda n: ("queue", "result", "q", *C, "--id", n),
    "queue show": lambda n: ("queue", "show", "q", *C, "--id", n),
    "queue recover": lambda n: ("queue", "recover", "q", *C, "--worker", n),
    "queue discard, delayed": lambda n: ("queue", "discard", "q", *C, "--side", "delayed", "--id", n),
    "queue discard, all": lambda n: ("queue", "discard", "q", *C, "--all", "--reason", n, "--key", n, "--header",
                                     f"{n}={n}", "--confirm", n),
    "queue redrive, all": lambda n: ("queue", "redrive", n, *C, "--all", "--side", n),
    "queue move": lambda n: ("queue", "move", "q", *C, "--to", n, "--id", n),
    "queue stats": lambda n: ("queue", "stats", n, "--client", n),
    "queue wait": lambda n: ("queue", "wait", n, *C, "--timeout", "0"),
    "queue pause": lambda n: ("queue", "pause", n, *C),
    "queue resume": lambda n: ("queue", "resume", n, *C),
    "queue scale": lambda n: ("queue", "scale", n, "1", *C),
    "queue set": lambda n: ("queue", "set", n, *C, "--retry"),
    "queue shovel": lambda n: ("queue", "shovel", n, *C),
    "queue sweep": lambda n: ("queue", "sweep", *C, "--election", n, "--timeout", "5"),
    "queue sweep, client": lambda n: ("queue", "sweep", "--client", n, "--timeout", "5"),
    "queue deactivate": lambda n: ("queue", "deactivate", n, *C, "--confirm", n),
    "queue activate": lambda n: ("queue", "activate", n, *C),
    "queue group list": lambda n: ("queue", "group", "list", n, *C),
    "queue group create": lambda n: ("queue", "group", "create", "q", n[:64], *C, "--start", "now"),
    "queue group create, start": lambda n: ("queue", "group", "create", n, "g", *C, "--start", n),
    "queue group drop": lambda n: ("queue", "group", "drop", "q", n, *C),
    "queue group stats": lambda n: ("queue", "group", "stats", n, n, *C),
    "queue batch list": lambda n: ("queue", "batch", "list", n, *C),
    "queue batch show": lambda n: ("queue", "batch", "show", "q", n, *C),
    "queue batch wait": lambda n: ("queue", "batch", "wait", "q", n, *C, "--timeout", "0"),
    "queue batch results": lambda n: ("queue", "batch", "results", "q", n, *C),
    "queue batch close": lambda n: ("queue", "batch", "close", "q", n, *C),
    "queue batch cancel": lambda n: ("queue", "batch", "cancel", "q", n, *C),
    "schedule list": lambda n: ("schedule", "list", "--client", n),
    "schedule put": lambda n: ("schedule", "put", n, *C, "--queue", n, "--every", "60", "--payload", json.dumps(n)),
    "schedule put, cron": lambda n: ("schedule", "put", n, *C, "--queue", "q", "--cron", n, "--tz", n, "--missed", n),
    "schedule put, client": lambda n: ("schedule", "put", "s", "--client", n, "--queue", "q", "--every", "60"),
    "schedule next": lambda n: ("schedule", "next", n, *C),
    "schedule pause": lambda n: ("schedule", "pause", n, *C, "--why", n),
    "schedule resume": lambda n: ("schedule", "resume", n, *C, "--why", n),
    "schedule trigger": lambda n: ("schedule", "trigger", n, *C, "--why", n),
    "schedule remove": lambda n: ("schedule", "remove", n, *C),
    "semaphore run": lambda n: ("semaphore", "run", n, "--permits", "1", "--timeout", "5", "--", "true", n),
    "barrier wait": lambda n: ("barrier", "wait", n, *C, "--party", n, "--as", n, "--payload", json.dumps(n)),
    "barrier wait, group": lambda n: ("barrier", "wait", "b", *C, "--party", "p", "--as", "p", "--alive", n),
    "barrier wait, farm": lambda n: (
        "barrier", "wait", "b", *C, "--party", f"{n}/p", "--as", "p", "--farm", n, "--level", "xdc", "--timeout", "1"),
    "barrier show": lambda n: ("barrier", "show", n, "--client", n, "--party", n),
    "barrier abort": lambda n: ("barrier", "abort", n, *C, "--party", n, "--reason", n),
    "group members": lambda n: ("group", "members", n, "--farm", n),
    "group watch": lambda n: ("group", "watch", n, "--timeout", "0"),
    "group run": lambda n: ("group", "run", n, "--as", n, "--meta", json.dumps(n), "--", "true", n),
    "rwlock read": lambda n: ("rwlock", "read", n, "--timeout", "5", "--", "true", n),
    "rwlock write": lambda n: ("rwlock", "write", n, "--timeout", "5", "--", "true", n),
    "rwlock show": lambda n: ("rwlock", "show", n),
    "rwlock clear": lambda n: ("rwlock", "clear", n, "--fence", "1", "--timeout", "5", "--why", n),
    "limit try": lambda n: ("limit", "try", n, "--limit", "5", "--per", "60"),
    "limit wait": lambda n: ("limit", "wait", n, "--limit", "50", "--per", "1", "--timeout", "5"),
    "semaphore show": lambda n: ("semaphore", "show", n),
    "semaphore resize": lambda n: ("semaphore", "resize", n, "2"),
    "stats": lambda n: ("stats", "--client", n),
    "stats, farm": lambda n: ("stats", *C, "--farm", n),
    "doctor": lambda n: ("doctor", "--client", n, "--farm", n),
    "audit": lambda n: ("audit", "--client", n, "--about", n),
    "top": lambda n: ("top", "--client", n, "--farm", n, "--json"),
}  # fmt: skip
WITHOUT_A_NAME = {"console", "demo", "worker", "outbox stats"}
"""They ask no server for a name that was given them: the worker runs a program, and the console does as `top`, with the
names above."""
VARIABLES = ("LATCHWORK_FARM", "LATCHWORK_CLIENT", "LATCHWORK_STORE")


@pytest.fixture
def canary(aerospike_store):
    """Says whether the namespace still holds its records; a command that was given before has run by then."""
    store = aerospike_store
    store.operate(CANARY, Put("n", 1), exists=Exists.ANY)
    client, namespace = store._link.connect(), store.namespace

    def is_alive():
        last = Key("canary2", "last")
        store.operate(last, Put("n", 1), exists=Exists.ANY)
        time.sleep(0.01)  # what was written in the millisecond of the command stays
        command = f"truncate:namespace={namespace};set={last.set}"
        client.info_random_node(command, PATIENT)  # commands are carried out in turn
        _until(lambda: store.get(last) is None)
        return store.get(CANARY) is not None

    return is_alive


def _until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_server_takes_a_line_in_a_name_for_a_command(aerospike_store, canary):
    client, namespace = aerospike_store._link.connect(), aerospike_store.namespace
    assert canary()
    client.info_random_node(f"namespaces\ntruncate:namespace={namespace};set={CANARY.set}\n", PATIENT)
    _until(lambda: aerospike_store.get(CANARY) is None)
    assert not canary()


@pytest.mark.matrix
@pytest.mark.parametrize("what", TEXTS)
def test_no_text_of_a_program_is_a_command_of_the_server(aerospike_store, canary, what):
    for name in evil(aerospike_store.namespace):
        with suppress(LatchworkError):
            TEXTS[what](aerospike_store, name)
    assert canary()


NESTED = (("queue", "group"), ("queue", "batch"))


def test_every_command_is_tried():
    names = {" ".join(words("x")[: 3 if words("x")[:2] in NESTED else 2]) for words in COMMANDS.values()}
    assert {name.removesuffix(" --client") for name in names} | WITHOUT_A_NAME == set(command_names())


def _run(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return ended.value.code or 0


@pytest.mark.matrix
@pytest.mark.parametrize("what", COMMANDS)
def test_no_word_of_a_command_is_a_command_of_the_server(aerospike_store, aerospike_server, canary, what, capsys):
    QueueRegistry(aerospike_store, "inj").create(QueueConfig("q", shards=1, message_expiry=timedelta(hours=1)))
    for name in evil(aerospike_store.namespace):
        assert _run("--store", aerospike_server.url, *COMMANDS[what](name)) in range(5)
    assert "Traceback" not in capsys.readouterr().err
    assert canary()


@pytest.mark.parametrize("variable", VARIABLES)
def test_no_variable_is_a_command_of_the_server(aerospike_store, canary, variable, monkeypatch, capsys):
    url = aerospike_store._link.target.url
    monkeypatch.setenv("LATCHWORK_STORE", url)
    monkeypatch.setenv("LATCHWORK_CLIENT", "inj")
    for name in evil(aerospike_store.namespace):
        monkeypatch.setenv(variable, f"{url}{name}" if variable == "LATCHWORK_STORE" else name)
        for words in (("queue", "list"), ("queue", "create", "q2"), ("stats",), ("latch", "show", "l")):
            assert _run(*words) in range(5)
    assert "Traceback" not in capsys.readouterr().err
    assert canary()
