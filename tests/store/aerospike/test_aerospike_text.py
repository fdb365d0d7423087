"""Stored values that the client does not survive, or misreads, are one record's error and nobody else's.

Whatever reads them runs in a child, which the client may end.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.slots import Slot
from latchwork.store import Exists, Key, Put
from tests.support import wire

SET = "text"
GOOD, BAD, LAST = (Key(SET, name) for name in ("good", "bad", "last"))
VALUES = {
    "text": (wire.TEXT, b"\xff\xfe"),
    "text in a list": (wire.LIST, b"\x91\xa3\x03\xff\xfe"),
    "text in a map": (wire.MAP, b"\x81\xa2\x03k\xa3\x03\xff\xfe"),
    "a list of 70 levels": (wire.LIST, b"\x91" * 70 + b"\x01"),
}
"""Of the bin `t`; in a list each text begins with the number of its kind."""

PROGRAM = """
import sys
from latchwork.errors import LatchworkError
from latchwork.queue.rows import read_each
from latchwork.store import Add, Key, Put, Read, Update
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.model.ops import ReadAll
store = AerospikeStore.from_url(sys.argv[1])
keys = [Key("text", name) for name in ("good", "bad", "last")]
def said(ask):
    try:
        return ask()
    except LatchworkError as failure:
        return failure
def shown(row):
    return f"{row.code} {row}" if isinstance(row, LatchworkError) else str(row)
VERBS = {
    "get": lambda: [said(lambda: store.get(key).bins["n"]) for key in keys],
    "operate": lambda: [said(lambda: store.operate(key, Read("t"), Read("n"))[1]) for key in keys],
    "get_many": lambda: [said(lambda: [record.bins["n"] for record in store.get_many(keys)])],
    "get_many of a bin": lambda: [said(lambda: [record.bins for record in store.get_many(keys, "n")])],
    "operate_many": lambda: [
        row if isinstance(row, LatchworkError) else row[0]["n"]
        for row in store.repeat_many([Update(key, (Put("m", 1), ReadAll())) for key in keys])
    ],
    "operate_many, reads": lambda: [
        row if isinstance(row, LatchworkError) else row[0]["n"]
        for row in store.repeat_many([Update(key, (ReadAll(),)) for key in keys])
    ],
    "read_each": lambda: [
        row if isinstance(row, LatchworkError) else row.bins["n"] for row in read_each(store, keys)
    ],
    "query": lambda: [said(lambda: sorted(record.key.name for record in store.query("text", "kind", "k")))],
}
for verb in sys.argv[2:]:
    for row in VERBS[verb]():
        print(shown(row))
try:
    b"\\xff".decode()
except UnicodeDecodeError:
    print("strict")
"""


@pytest.fixture(params=VALUES)
def server(request, aerospike_server, aerospike_store):
    if not hasattr(aerospike_server, "host"):
        pytest.skip("no address")
    for key in (GOOD, LAST):
        aerospike_store.operate(key, Put("n", 1), Put("t", "sound"), Put("kind", "k"), exists=Exists.ANY)
    bins = {"kind": (wire.TEXT, b"k"), "t": VALUES[request.param], "n": (wire.INTEGER, bytes(7) + b"\x01")}
    assert wire.put(aerospike_server, BAD, bins) == 0
    aerospike_server.kind = request.param
    return aerospike_server


def read(server, *verbs):
    """What a child of ours read, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, *verbs], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-500:]}"
    lines = done.stdout.splitlines()
    assert lines.pop() == "strict", "everybody else's text is decoded as ever"
    return lines


@pytest.mark.matrix
@pytest.mark.parametrize("verb", ["get", "operate", "operate_many", "operate_many, reads", "read_each"])
def test_a_value_that_cannot_be_decoded_fails_its_record_alone(server, verb):
    good, bad, last = read(server, verb)
    assert (good, last) == ("1", "1")
    assert bad.startswith("UNREADABLE")
    assert "bad" in bad


def test_a_batch_of_reads_names_the_record_that_cannot_be_decoded(server):
    line, asked_for_another_bin = read(server, "get_many", "get_many of a bin")
    assert line.startswith("UNREADABLE")
    assert "name='bad'" in line
    assert asked_for_another_bin == str([{"n": 1}] * 3), "who does not ask for the bin reads the record"


def test_a_query_passes_over_the_record_that_cannot_be_decoded(server, aerospike_store):
    aerospike_store.ensure_index(SET, "kind")
    (line,) = read(server, "query")
    if server.kind == "a list of 70 levels":  # the client ends the whole query
        assert line.startswith("UNREADABLE")
    else:
        assert line == "['good', 'last']"


QUEUE = """
import sys
from latchwork.errors import LatchworkError
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store.aerospike import AerospikeStore
queue = QueueRegistry(AerospikeStore.from_url(sys.argv[1]), sys.argv[2]).get("orders")
def said(ask):
    try:
        return ask()
    except LatchworkError as failure:
        return failure.code
print(said(lambda: sorted(message.payload for message in queue.peek(100))))
print(sorted(message.payload for message in queue.receive(100)))
print(sorted(message.payload for message in queue.receive(100)))
try:
    b"\\xff".decode()
except UnicodeDecodeError:
    print("strict")
"""


@pytest.mark.long
def test_a_message_that_cannot_be_decoded_keeps_its_queue_from_nothing(aerospike_server, aerospike_store):
    for number, value in enumerate(VALUES.values()):
        client = f"text{number}"
        queue = QueueRegistry(aerospike_store, client).create(QueueConfig("orders", shards=1))
        queue.publish_many([1, 2, 3])
        key = queue.pointers.key(Slot(0, 2))
        assert wire.put(aerospike_server, key, {"data": value}) == 0
        done = subprocess.run(
            [sys.executable, "-c", QUEUE, aerospike_server.url, client], check=False, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-500:]}"
        peeked, first, second, strict = done.stdout.splitlines()
        assert peeked == "[1, 3]"
        assert sorted([*json.loads(first), *json.loads(second)]) == [1, 3]
        assert strict == "strict"


def test_a_record_without_a_stored_key_fails_no_query_for_the_others(aerospike_server, aerospike_store, caplog):
    if not hasattr(aerospike_server, "host"):
        pytest.skip("no address")
    aerospike_store.ensure_index("named", "kind")
    aerospike_store.operate(Key("named", "good"), Put("kind", "k"), exists=Exists.ANY)
    assert wire.put(aerospike_server, Key("named", "other"), {"kind": (wire.TEXT, b"k")}, named=False) == 0
    assert [record.key.name for record in aerospike_store.query("named", "kind", "k")] == ["good"]
    assert "a record of set named without its key" in caplog.text
