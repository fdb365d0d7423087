"""What the client really does where a node cannot be reached: the tables of docs/aerospike-client.md, on real servers.

Each call is made under each condition, once of the client and once of the store; the page says what comes of it. A
later client that does otherwise fails here first.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import aerospike
import pytest
from aerospike import exception as driver
from aerospike import predicates
from aerospike_helpers.batch.records import BatchRecords, Read, Remove, Write
from aerospike_helpers.operations import operations as on_bin

from latchwork.errors import LatchworkError, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Key, Removal, Update
from latchwork.store import Read as ReadBin
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.outage import Place
from tests.support.proxy import Fault, Proxy
from tests.support.real_servers import or_skip
from tools import servers
from tools.cluster import cluster, settled

PAGE = Path(__file__).parents[3] / "docs" / "aerospike-client.md"
SET, ROWS = "outages", 6
ONCE = {"max_retries": 0}
PATIENT, NEVER = 10_000, 600_000
PATIENCE = {"hung": 150, "hung, one of three": 1000}
"""Milliseconds: of a patient client; between looks that never come; and until a client gives up a call, by column. In
the other columns each call ends by itself, however slow the machine is. Where one of three hangs, the others have this
time to answer.
"""
TRIES = 5
"""Of a call that the client gives up so soon."""
INDEX = ("test", SET, "n", aerospike.INDEX_NUMERIC, f"{SET}_n", {})


# ---- the calls, of the client and of the store

Keys = list[tuple[str, str, str]]


def _query(client: Any) -> Any:
    query = client.query("test", SET)
    query.where(predicates.equals("n", 1))
    return query.results(ONCE)


CLIENT: dict[str, Callable[[Any, Keys], Any]] = {
    "get": lambda client, keys: client.get(keys[0], ONCE),
    "select": lambda client, keys: client.select(keys[0], ["n"], ONCE),
    "operate, reading": lambda client, keys: client.operate(keys[0], READ, None, ONCE),
    "operate, writing": lambda client, keys: client.operate(keys[0], ADD, None, ONCE),
    "operate_ordered, reading": lambda client, keys: client.operate_ordered(keys[0], READ, None, ONCE),
    "operate_ordered, writing": lambda client, keys: client.operate_ordered(keys[0], ADD, None, ONCE),
    "remove": lambda client, keys: client.remove(keys[0], policy=ONCE),
    "batch_read": lambda client, keys: client.batch_read(keys, None, ONCE),
    "batch_write, reading": lambda client, keys: _batch(client, [Read(key, READ) for key in keys]),
    "batch_write, writing": lambda client, keys: _batch(client, [Write(key, ADD) for key in keys]),
    "batch_write, writing one": lambda client, keys: _batch(client, [Write(keys[0], ADD)]),
    "batch_write, removing": lambda client, keys: _batch(client, [Remove(key) for key in keys]),
    "query.results": lambda client, _: _query(client),
    "info_random_node": lambda client, _: client.info_random_node("build"),
    "info_all": lambda client, _: client.info_all("build"),
    "index_single_value_create": lambda client, _: client.index_single_value_create(*INDEX),
}
READ, ADD = [on_bin.read("n")], [on_bin.increment("n", 1)]


def _batch(client: Any, rows: list[Any]) -> Any:
    return client.batch_write(BatchRecords(rows), ONCE)


STORE: dict[str, Callable[[AerospikeStore, list[Key]], Any]] = {
    "get": lambda store, keys: store.get(keys[0]),
    "get_many": lambda store, keys: store.get_many(keys),
    "operate, reading": lambda store, keys: store.operate(keys[0], ReadBin("n")),
    "operate, writing": lambda store, keys: store.operate(keys[0], Add("n", 1)),
    "operate_many, reading": lambda store, keys: store.operate_many([Update(key, (ReadBin("n"),)) for key in keys]),
    "operate_many, writing": lambda store, keys: store.operate_many([Update(key, (Add("n", 1),)) for key in keys]),
    "delete": lambda store, keys: store.delete(keys[0]),
    "delete_many": lambda store, keys: store.delete_many([Removal(key) for key in keys]),
    "query": lambda store, _: store.query(SET, "n", 1),
    "ensure_index": lambda store, _: store.ensure_index(SET, "n", int),
    "describe": lambda store, _: AerospikeStore(store._link.client, "test").describe(),
    "mastered": lambda store, keys: store.mastered(keys),
}


# ---- what came of a call, in the words of the page


def seen(call: Callable[[], Any]) -> str:
    """What the client did."""
    try:
        found = call()
    except driver.AerospikeError as failure:
        code, in_doubt = failure.args[0], failure.args[4]
        return f"raises {code}{', in doubt' if in_doubt else ''}"
    if isinstance(found, BatchRecords):
        rows = sorted({_row(row) for row in found.batch_records}, key=lambda row: row.startswith("-15"))
        return f"result {found.result}: {' and '.join(rows) or 'no rows'}"
    return "answers nothing" if found == {} else "answers"


def _row(row: Any) -> str:
    if row.result == 0:
        return "answered" if row.record[1]["gen"] else "0, no generation"
    return f"{row.result}{', in doubt' if row.in_doubt else ''}"


def told(call: Callable[[], Any]) -> str:
    """What the store made of it."""
    try:
        found = call()
    except LatchworkError as failure:
        return type(failure).__name__
    if not isinstance(found, list):
        return "answers"
    kinds = {type(row).__name__ if isinstance(row, LatchworkError) else "answers" for row in found}
    return " and ".join(sorted(kinds, key=str.lower, reverse=True))


# ---- the conditions


Condition = Callable[[Place, Any], AbstractContextManager[None]]
CONDITIONS: dict[str, tuple[str, Condition]] = {
    "no node": ("no node known", Place.no_node),
    "refused": ("refused", lambda place, _: place.refused()),
    "stopped": ("hung", lambda place, _: place.stopped()),
    "black hole": ("hung", lambda place, _: place.during(Fault.DROP_REQUEST)),
    "cut": ("cut", lambda place, _: place.during(Fault.CUT_AFTER)),
    "reset": ("cut", lambda place, _: place.during(Fault.RESET)),
    "half a reply": ("cut", lambda place, _: place.during(Fault.HALF)),
}
"""For each condition the column of the page that it belongs to."""


@pytest.fixture(scope="module")
def one() -> Iterator[Place]:
    """One server."""
    with or_skip():
        made = servers.started(servers.Asd())
    place = Place([made])
    yield place
    place.close()
    made.close()


@pytest.fixture(scope="module")
def three() -> Iterator[Place]:
    """Three nodes of one cluster."""
    with or_skip(), cluster(3) as nodes:
        place = Place(nodes)
        yield place
        place.close()


class Meeting(NamedTuple):
    """A store whose client meets a condition, the column of the page that says what comes of it, and records to ask."""

    column: str
    store: AerospikeStore
    keys: list[Key]

    def of_the_client(self) -> dict[str, Callable[[], str]]:
        """What says what it does, by call."""
        keys = [("test", key.set, key.name) for key in self.keys]
        return {call: partial(seen, partial(do, self.store._link.client, keys)) for call, do in CLIENT.items()}

    def of_the_store(self) -> dict[str, Callable[[], str]]:
        """What says what it makes of that, by verb."""
        return {verb: partial(told, partial(do, self.store, self.keys)) for verb, do in STORE.items()}


@pytest.fixture(params=CONDITIONS)
def met(request: pytest.FixtureRequest, one: Place) -> Iterator[Meeting]:
    """Under each condition."""
    column, begin = CONDITIONS[request.param]
    yield from _meeting(one, column, begin)


@pytest.fixture(params=["refused", "stopped"])
def met_by_one(request: pytest.FixtureRequest, three: Place) -> Iterator[Meeting]:
    """The same where one of three nodes is away, which has half of the records, the first among them."""
    column, begin = CONDITIONS[request.param]
    settled(three.nodes)  # a node that was stopped for the test before takes its records back some seconds later
    yield from _meeting(three, f"{column}, one of three", begin)


def _meeting(place: Place, column: str, begin: Condition) -> Iterator[Meeting]:
    # Only the first column is of a client that has dropped its nodes. The others never look at the cluster again, which
    # gives the records of a node that is stopped to the rest after 1.5 s.
    client = place.client(
        tend=250 if column == "no node known" else NEVER, patience=PATIENCE.get(column, PATIENT), connecting=PATIENT
    )
    store = AerospikeStore(client, "test")
    store.policy = RetryPolicy(attempts=1)
    servers.until(lambda: _is_ready(store))
    keys = _spread(place)
    for key in keys:
        client.put(("test", key.set, key.name), {"n": 1}, policy={"socket_timeout": PATIENT, "total_timeout": PATIENT})
    with begin(place, client):
        yield Meeting(column, store, keys)
    client.close()


def _is_ready(store: AerospikeStore) -> bool:
    """Whether it knows the namespace, and the servers have the index: on a slow machine not when first asked."""
    with suppress(Unavailable, driver.TimeoutError):
        store.describe()
        with suppress(driver.IndexFoundError):
            store._link.client.index_single_value_create(*INDEX[:5], {"timeout": PATIENT})
        return True
    return False


def _spread(place: Place) -> list[Key]:
    """Records of which the node that is to be away has the first ones, and others the rest."""
    away, there, elsewhere = place.name_of(0), [], []
    with closing(place.client(patience=PATIENT)) as client:
        store = AerospikeStore(client, "test")
        for number in range(100 * ROWS):
            key = Key(SET, f"k{number}")
            (there if store.mastered([key]).get(away) else elsewhere).append(key)
            if len(place.nodes) == 1 and len(there) == ROWS:
                return there
            if min(len(there), len(elsewhere)) == ROWS // 2:
                return [*there[: ROWS // 2], *elsewhere[: ROWS // 2]]
    raise AssertionError("one node has all the records")


# ---- the tables


def table(title: str) -> dict[str, dict[str, str]]:
    """The cells of a table of the page, by row and column."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    return {row[0].strip("`"): dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def other_than_the_page_says(
    title: str, column: str, calls: dict[str, Callable[[], str]]
) -> dict[str, tuple[str, str]]:
    """What was found and what the page says, where that differs; the page says "or" where it depends on the node."""
    says = {row: cells[column] for row, cells in table(title).items()}
    assert calls.keys() == says.keys()
    found = {row: _found(call, says[row], TRIES if column in PATIENCE else 1) for row, call in calls.items()}
    return {row: (did, says[row]) for row, did in found.items() if did not in says[row].split(" or ")}


def _found(call: Callable[[], str], says: str, tries: int) -> str:
    """What comes of a call. Where all that lacks is the doubt, it is made again: on a busy machine the client may have
    given up before it had sent anything.
    """
    unsent = says.replace(", in doubt", "").replace("OutcomeUnknown", "Unavailable")
    for _ in range(tries):
        found = call()
        if found == says or found != unsent:
            break
    return found


def test_the_client_does_what_the_page_says(met):
    assert not other_than_the_page_says("What the client does", met.column, met.of_the_client())


def test_the_store_says_what_the_page_says(met):
    assert not other_than_the_page_says("What the store makes of it", met.column, met.of_the_store())


@pytest.mark.long
def test_the_client_does_what_the_page_says_where_one_of_several_is_away(met_by_one):
    assert not other_than_the_page_says("What the client does", met_by_one.column, met_by_one.of_the_client())


@pytest.mark.long
def test_the_store_says_what_the_page_says_where_one_of_several_is_away(met_by_one):
    assert not other_than_the_page_says("What the store makes of it", met_by_one.column, met_by_one.of_the_store())


def test_the_page_names_the_client_that_was_seen():
    assert f"Python client {version('aerospike')}" in PAGE.read_text()


def test_a_proxy_that_is_closed_serves_nobody_whom_it_had_only_just_accepted(monkeypatch):
    port, server = servers.free_ports(2)
    proxy, connect = Proxy(port, server), socket.create_connection

    def late(*given: Any) -> socket.socket:
        proxy.close()
        return connect(*given)

    monkeypatch.setattr(socket, "create_connection", late)
    with socket.create_server(("127.0.0.1", server)), socket.socket() as client:
        client.settimeout(5)
        client.connect(("127.0.0.1", port))
        assert client.recv(1) == b""
