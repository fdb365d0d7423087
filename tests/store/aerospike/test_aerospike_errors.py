"""What the client can fail with, at each call that is made of it, and what the caller is told; no server is needed."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import aerospike
import pytest
from aerospike import exception as driver

from latchwork.deadline import Deadline
from latchwork.errors import (
    InvalidRequest,
    LatchworkError,
    Misconfigured,
    OutcomeUnknown,
    Unavailable,
    WaitTimeout,
)
from latchwork.retry import RetryPolicy, again
from latchwork.seams import SYSTEM
from latchwork.store import Add, Bin, Exists, Key, ListRange, ListSet, MapAdd, MapPut, Param, Put, Read, Removal, Update
from latchwork.store.aerospike import info as aerospike_info
from latchwork.store.aerospike.connection import MAX_AGE, Link
from latchwork.store.aerospike.info import INDEX_TIMEOUT
from latchwork.store.aerospike.ops import compile_ops
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.aerospike.url import parse
from latchwork.store.contract.records import raises
from latchwork.store.model import expr as e
from latchwork.testing.clock import ManualClock
from tests.support.forking import held_by_another_thread

KEY, OTHER = Key("errors", "k"), Key("errors", "o")
OVERLOADED = driver.DeviceOverload(18, "device overload", "file.c", 1, False)
IN_DOUBT = driver.TimeoutError(9, "timed out", "file.c", 1, True)
FORBIDDEN = driver.ForbiddenError(22, "forbidden", "file.c", 1, False)
NAMESPACE = "replication-factor=1;strong-consistency={};nsup-period=120;default-ttl=0"


@pytest.fixture(autouse=True)
def _introduced(monkeypatch):
    """The namespace has been spoken of, so that only what a test asks for is asked."""
    monkeypatch.setattr(aerospike_info, "_said", {"ns"})


class Client:
    """A client each of whose calls answers, or fails, as told; `asked` has their names in order."""

    def __init__(self, **answers) -> None:
        self.answers, self.asked = answers, []

    def __getattr__(self, name):
        if name not in self.answers:
            raise AttributeError(name)

        def call(*args, **_):
            self.asked.append(name)
            answer = self.answers[name]
            answer = answer(*args) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def store(client, **options):
    made = AerospikeStore(client, "ns", **options)
    made.policy = RetryPolicy(attempts=1)
    return made


def info(**answers):
    """An answer to each info command, by how the command begins."""

    def answer(command):
        found = next(text for start, text in answers.items() if command.startswith(start.replace("_", "-")))
        return found if isinstance(found, Exception) else f"{command}\t{found}\n"

    return answer


def said(strong="false"):
    return info(namespace=NAMESPACE.format(strong), edition="Aerospike Community Edition", build="8.1")


# ---- calls that fail


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.get(KEY),
        lambda store: store.get(KEY, "n"),
        lambda store: store.get_many([KEY, OTHER]),
        lambda store: store.operate(KEY, Read("n")),
        lambda store: store.query("errors", "n", 1),
        lambda store: store.describe(),
        lambda store: store.ensure_index("errors", "n", int),
    ],
    ids=["get", "select", "get_many", "read", "query", "describe", "ensure_index"],
)
def test_a_read_that_fails_is_unavailable_never_absent(ask):
    names = ("get", "select", "batch_read", "operate", "operate_ordered", "query", "info_random_node")
    for failure in (OVERLOADED, IN_DOUBT):
        with pytest.raises(Unavailable) as refused:
            ask(store(Client(**dict.fromkeys(names, failure))))
        assert again(refused.value)


@pytest.mark.parametrize(("failure", "outcome"), [(OVERLOADED, Unavailable), (IN_DOUBT, OutcomeUnknown)])
def test_a_batch_of_writes_that_fails_as_a_whole_says_what_became_of_each_row(failure, outcome):
    failing = store(Client(batch_write=failure))
    rows = failing.operate_many([Update(key, (Put("n", 1),)) for key in (KEY, OTHER)])
    removed = failing.delete_many([Removal(KEY, Bin("n") > 5), Removal(OTHER, Bin("n") > 5)])
    assert [type(row) for row in [*rows, *removed]] == [outcome] * 4
    assert "errors" in str(rows[0])
    assert failing._link.client.asked == ["batch_write"] * 2


def test_a_batch_whose_rows_are_all_wrong_is_not_sent():
    client = Client()
    rows = store(client)._operate_many([Update(KEY, (Put("n", Param("unbound")),))])
    assert [type(row) for row in rows] == [InvalidRequest]
    assert client.asked == []


def test_a_refused_ttl_of_a_server_that_cannot_be_asked_for_the_reason_may_be_tried_again():
    failing = store(Client(operate_ordered=FORBIDDEN, info_random_node=OVERLOADED))
    failing._link.durable = False  # else it is asked first what the namespace is
    with pytest.raises(Unavailable) as refused:
        failing.operate(KEY, Put("n", 1), exists=Exists.ANY, ttl=60)
    assert again(refused.value)
    assert failing._link.client.asked == ["operate_ordered", "info_random_node"]


class Row:
    """What became of one row of a batch."""

    in_doubt = False

    def __init__(self, result, message=None, bins=None):
        self.result, self.message, self.record = result, message, ((), {"ttl": 60, "gen": 1}, bins)


def test_a_row_that_cannot_be_read_is_unavailable_and_one_that_is_not_there_is_none():
    def answer(*rows):
        return Client(batch_read=SimpleNamespace(result=0, batch_records=rows))

    found, absent = store(answer(Row(0, bins={"n": 1}), Row(2, "not found"))).get_many([KEY, OTHER])
    assert (found.bins, absent) == ({"n": 1}, None)
    with pytest.raises(Unavailable, match="device overload") as refused:
        store(answer(Row(0, bins={"n": 1}), Row(18, "device overload"))).get_many([KEY, OTHER])
    assert again(refused.value)


class Rows:
    """A query that finds these rows."""

    def __init__(self, *rows):
        self.rows = rows

    def where(self, predicate):
        pass

    def results(self, policy):
        return list(self.rows)


def test_a_record_without_its_key_is_passed_over_by_a_query_and_the_log_says_how_to_write_it(caplog):
    nameless = (("ns", "errors", None, bytearray(b"digest")), {"ttl": 60, "gen": 1}, {"n": 1})
    named = (("ns", "errors", "k", bytearray(b"digest")), {"ttl": 60, "gen": 1}, {"n": 1})
    assert [one.key.name for one in store(Client(query=Rows(nameless, named))).query("errors", "n", 1)] == ["k"]
    assert "send-key" in caplog.text


def test_a_record_with_text_that_is_no_utf_8_is_passed_over_by_a_query_and_the_log_names_it_and_its_bin(caplog):
    def row(name, bins):
        return (("ns", "errors", name, bytearray(b"digest")), {"ttl": 60, "gen": 1}, bins)

    class Decoding(Rows):
        def results(self, policy):
            return [*super().results(policy), row("bad", {"n": 1, "t": b"\xff".decode()})]

    client = Client(query=Decoding(row("good", {"n": 1, "t": "é"})))
    assert [one.key.name for one in store(client).query("errors", "n", 1)] == ["good"]
    (said,) = (record.getMessage() for record in caplog.records)
    assert "bin 't' of 'bad' in set errors" in said


# ---- what the namespace is


def test_a_strongly_consistent_namespace_is_asked_for_it_once():
    client = Client(info_random_node=said("true"), get=((), {"ttl": 60, "gen": 1}, {"n": 1}))
    strict = store(client, require_sc=True)
    assert [strict.get(KEY).bins for _ in range(2)] == [{"n": 1}] * 2
    assert client.asked == ["info_random_node"] * 3 + ["get"] * 2


def test_a_namespace_that_is_not_strongly_consistent_is_refused_each_time():
    client = Client(info_random_node=said("false"))
    strict = store(client, require_sc=True)
    for _ in range(2):
        with pytest.raises(Misconfigured, match="strong-consistency"):
            strict.get(KEY)
    assert "get" not in client.asked


NO_ROLE = driver.RoleViolation(81, "role violation", "file.c", 1, False)


def test_a_namespace_without_a_default_ttl_is_asked_for_it_once_and_pays_no_second_call():
    client = Client(info_random_node=said(), operate_ordered=((), {"ttl": 60, "gen": 1}, {}))
    plain = store(client)
    for _ in range(2):
        plain.operate(KEY, Put("n", 1), exists=Exists.ANY)
    plain.operate(KEY, Put("n", 1))
    assert client.asked == ["info_random_node"] * 3 + ["operate_ordered"] * 3


def test_a_namespace_that_may_not_be_asked_for_its_default_ttl_is_taken_to_have_one():
    sent = []

    def operate(key, ops, meta, policy):
        sent.append((policy["exists"], policy["ttl"]))
        return driver.RecordNotFound(2, "not found", "file.c", 1, False) if len(sent) == 1 else ((), {}, {})

    store(Client(info_random_node=NO_ROLE, operate_ordered=operate)).operate(KEY, Put("n", 1), exists=Exists.ANY)
    assert sent == EITHER


EITHER = [
    (aerospike.POLICY_EXISTS_UPDATE, aerospike.TTL_DONT_UPDATE),
    (aerospike.POLICY_EXISTS_CREATE, aerospike.TTL_NEVER_EXPIRE),
]
ABSENT = driver.RecordNotFound(2, "not found", "file.c", 1, False)


class Restarted:
    """A server without records whose namespace is set up anew behind a client that lives on; `sent`: the writes."""

    def __init__(self) -> None:
        self.settings, self.sent, self.clock = NAMESPACE.format("false"), [], ManualClock()
        self.client = Client(info_random_node=self.answer, operate_ordered=self.operate)
        self.store = store(self.client, seams=self.clock)

    def answer(self, command):
        return self.settings if isinstance(self.settings, Exception) else f"{command}\t{self.settings}\n"

    def operate(self, key, ops, meta, policy):
        self.sent.append((policy["exists"], policy["ttl"]))
        return ABSENT if policy["exists"] == aerospike.POLICY_EXISTS_UPDATE else ((), {}, {})

    def write(self):
        """A write that makes the record: what was sent for it."""
        self.sent.clear()
        self.store.operate(KEY, Put("n", 1), exists=Exists.ANY)
        return self.sent.copy()


def test_a_record_never_expires_though_a_restarted_server_has_a_default_ttl():
    server = Restarted()
    assert len(server.write()) == 1
    server.settings = server.settings.replace("default-ttl=0", "default-ttl=5")
    server.clock.advance(MAX_AGE)
    assert server.write() == EITHER
    assert server.store.describe().default_ttl == 5
    assert server.client.asked.count("info_random_node") == 6


@pytest.mark.parametrize("answer", [OVERLOADED, NO_ROLE, ""], ids=["busy", "not allowed", "no namespace"])
def test_a_write_does_not_fail_where_the_namespace_cannot_be_asked_again(answer):
    server = Restarted()
    server.settings = server.settings.replace("default-ttl=0", "default-ttl=5")
    known = server.store.describe()
    server.settings = answer
    server.clock.advance(MAX_AGE)
    asked = len(server.client.asked)
    assert [server.write() for _ in range(2)] == [EITHER] * 2
    assert server.store.describe() == known
    assert server.client.asked[asked:].count("info_random_node") == 1, "and not again with each write"


def test_strong_consistency_that_is_required_is_looked_for_on_each_connection(monkeypatch):
    url, found = "aerospike://required-anew.invalid/ns?require_sc=true", {"get": ((), {"ttl": 60, "gen": 1}, {"n": 1})}
    made = [Client(info_random_node=said(strong), **found) for strong in ("true", "false")]
    first, second = made
    monkeypatch.setattr("latchwork.store.aerospike.connection._connected", lambda target: made.pop(0))
    strict = AerospikeStore.from_url(url)
    strict.get(KEY)
    strict.close()
    with pytest.raises(Misconfigured, match="strong-consistency"):
        strict.get(KEY)
    assert ("get" in first.asked, "get" in second.asked) == (True, False)


# ---- indexes

ERRORS_N = "ns=ns:indexname=errors_n:set=errors:bin=n:type=numeric:indextype=default:context=null:exp=null:state=RW"


def percent(*loaded):
    """What nodes say of an index that is loaded so far there."""
    return {f"node{n}": (None, f"sindex-stat\tload_pct={pct};x=1\n") for n, pct in enumerate(loaded)}


@pytest.mark.parametrize(
    ("set", "kind", "named"), [("errors", float, "float"), ("s" * 62, int, "63 bytes"), ("é" * 31, str, "63 bytes")]
)
def test_an_index_that_the_server_cannot_have_is_refused_before_any_call(set, kind, named):
    client = Client()
    with pytest.raises(InvalidRequest, match=named):
        store(client)._ensure_index(set, "n", kind)
    assert client.asked == []


def made_meanwhile(definition):
    """A client to which somebody else's index of the name errors_n appears while it makes its own."""
    there = driver.IndexFoundError(200, "index found", "file.c", 1, False)
    told = ["", ERRORS_N.replace("set=errors:bin=n:type=numeric", definition)]
    return Client(
        info_random_node=lambda command: f"{command}\t{told.pop(0)}\n",
        index_single_value_create=there,
        info_all=percent(100),
    )


def test_an_index_that_somebody_else_has_just_made_is_used():
    client = made_meanwhile("set=errors:bin=n:type=numeric")
    store(client).ensure_index("errors", "n", int)
    assert client.asked == ["info_random_node", "index_single_value_create", "info_random_node", "info_all"]


OTHERS = ("set=errors:bin=n:type=string", "set=errors:bin=n2:type=numeric", "set=errors_:bin=n:type=numeric")


@pytest.mark.parametrize("other", OTHERS)
def test_an_index_of_that_name_on_something_else_is_refused_with_both_named(other):
    there = Client(info_random_node=info(sindex_list=ERRORS_N.replace("set=errors:bin=n:type=numeric", other)))
    for client in (there, made_meanwhile(other)):
        with pytest.raises(InvalidRequest, match=f"errors_n.*{other},.*set=errors:bin=n:type=numeric:"):
            store(client).ensure_index("errors", "n", int)


def test_an_index_is_told_from_others_whose_names_begin_alike():
    others = [ERRORS_N.replace("indexname=errors_n", f"indexname=errors_n{more}") for more in ("2", ":x")]
    client = Client(
        info_random_node=info(sindex_list=";".join(others)), index_single_value_create=0, info_all=percent(100)
    )
    store(client).ensure_index("errors", "n", int)
    assert client.asked == ["info_random_node", "index_single_value_create", "info_all"]


def test_an_index_that_cannot_be_made_says_why():
    full = driver.IndexNameMaxCount(204, "too many indexes", "file.c", 1, False)
    client = Client(info_random_node=info(sindex_list=""), index_single_value_create=full)
    with pytest.raises(LatchworkError, match=r"errors_n.*too many indexes") as refused:
        store(client).ensure_index("errors", "n", int)
    assert isinstance(refused.value, InvalidRequest | Misconfigured)


def test_an_index_is_ready_once_every_node_has_loaded_it():
    answers = [{}, percent(100, 40), {"a": (None, None)}, percent(100, 100)]
    client = Client(info_random_node=info(sindex_list=ERRORS_N), info_all=lambda _: answers.pop(0))
    store(client, seams=ManualClock()).ensure_index("errors", "n", int)
    assert answers == []


def test_an_index_that_does_not_get_ready_in_time_says_so():
    clock = ManualClock()
    client = Client(info_random_node=info(sindex_list=ERRORS_N), info_all=percent(99))
    with pytest.raises(WaitTimeout, match="errors_n"):
        store(client, seams=clock).ensure_index("errors", "n", int)
    assert clock.monotonic() == pytest.approx(INDEX_TIMEOUT)


def test_a_node_that_cannot_be_asked_for_an_index_is_unavailable():
    client = Client(info_random_node=info(sindex_list=ERRORS_N), info_all=OVERLOADED)
    with pytest.raises(Unavailable):
        store(client).ensure_index("errors", "n", int)


# ---- connections


def test_an_unescaped_password_is_refused_with_the_way_to_write_it():
    with pytest.raises(InvalidRequest, match="%2F") as refused:
        AerospikeStore.from_url("aerospike://me:s3cr/et@host/ns")
    assert "s3cr" not in str(refused.value)


def test_a_host_that_cannot_be_found_may_be_tried_again():
    """The client reports it with the code of its own mistakes."""
    host = "x" * 64  # more than a label of a name may have, so that nobody is asked for it
    away = AerospikeStore.from_url(f"aerospike://{host}/ns?connect_timeout=100")
    with pytest.raises(Unavailable, match="check that a server answers") as refused:
        away._get(KEY, ())
    assert again(refused.value)


def test_a_wrong_setting_of_the_client_stays_the_callers_mistake():
    with pytest.raises((InvalidRequest, Misconfigured)):
        AerospikeStore.from_url("aerospike://127.0.0.1:1/ns?tls=true&tls_cafile=/none")._get(KEY, ())


def test_threads_that_wait_while_another_one_cannot_connect_fail_with_it_and_try_again_later(monkeypatch):
    link, tries, waiting = Link(parse("aerospike://silent.invalid/ns")), [], threading.Semaphore(0)

    def connect(target):
        tries.append(target)
        if len(tries) == 1:
            for _ in range(3):
                assert waiting.acquire(timeout=60)
            raise Unavailable("no answer in time")
        return Client()

    class Waited:
        """A lock that tells of each thread that waits for it."""

        def __init__(self, lock):
            self._lock = lock

        def __enter__(self):
            if not self._lock.acquire(blocking=False):
                waiting.release()
                self._lock.acquire()

        def __exit__(self, *error):
            return self._lock.__exit__(*error)

    monkeypatch.setattr(link, "_lock", Waited(threading.Lock()))
    monkeypatch.setattr("latchwork.store.aerospike.connection._connected", connect)
    with ThreadPoolExecutor(4) as threads:
        failures = list(threads.map(lambda _: raises(Unavailable, link.connect), range(4)))
    assert [str(failure) for failure in failures] == ["no answer in time"] * 4
    assert len({id(failure) for failure in failures}) == 4, "each has an error of its own"
    assert len(tries) == 1
    assert isinstance(link.connect(), Client)


def test_a_verb_waits_no_longer_than_it_has_time_while_another_thread_connects():
    link = Link(parse("aerospike://silent.invalid/ns"))
    with held_by_another_thread(link._lock), Deadline(SYSTEM, 0):
        failure = raises(Unavailable, link.connect)
    assert "no connection to aerospike://silent.invalid:3000/ns yet" in str(failure)


def test_a_fork_neither_uses_nor_destroys_the_parents_client():
    client = Client()
    link = Link(client=client)
    before = sys.getrefcount(client)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, b"%d %d" % (link.client is None, sys.getrefcount(client) >= before))
            link.connect()
        except Misconfigured as refused:
            os.write(writing, b" fork" if "fork" in str(refused) else b" ?")
        finally:
            os._exit(0)
    os.close(writing)  # so that a child that says nothing is noticed
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1 1 fork"
    assert link.connect() is client


# ---- what cannot be compiled


def test_a_parameter_without_a_value_is_named_before_any_call():
    client = Client()
    with pytest.raises(InvalidRequest, match="unbound"):
        store(client)._operate(Update(KEY, (Put("n", 1),), when=Bin("n") > Param("unbound")))
    assert client.asked == []


@pytest.mark.parametrize(
    "expression", [e.Negate("n > 1"), e.Compare(">", Bin("n"), 1), Bin("n", complex), e.MapValue("m", e.Const(1), set)]
)
def test_what_is_no_expression_is_refused_before_any_call(expression):
    client = Client()
    with pytest.raises(InvalidRequest):
        store(client)._operate(Update(KEY, (Put("n", 1),), when=expression))
    assert client.asked == []


@pytest.mark.parametrize(
    "op",
    [
        Add("n", 2**63),
        Add("n", 1.5),
        MapAdd("m", "a", -(2**63) - 1),
        MapPut("m", ("a",), 1),
        ListSet("l", -1, 0),
        ListRange("l", -1, 2),
        ListRange("l", 0, -1),
        "n = 1",
    ],
    ids=str,
)
def test_what_the_server_cannot_do_is_refused_before_any_call(op):
    client = Client()
    with pytest.raises(InvalidRequest):
        store(client)._operate(Update(KEY, (op,)))
    assert client.asked == []


@pytest.mark.parametrize("known", [e.Const(5), e.Bound(e.Param("p"), {"p": 5})], ids=["constant", "parameter"])
def test_a_value_that_is_known_here_is_sent_as_it_is_not_as_an_expression(known):
    assert compile_ops([Put("n", known), MapPut("m", "a", known)]) == compile_ops([Put("n", 5), MapPut("m", "a", 5)])
