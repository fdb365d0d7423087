"""Fixtures for real servers, and the line of the closing summary that says what was skipped for want of them."""

from __future__ import annotations

import pytest

from . import servers
from .proxy import Proxy

NO_SERVER = "no real server: "


@pytest.fixture(scope="session")
def aerospike_server():
    """One real Aerospike server for the whole run."""
    yield from _running(servers.start_aerospike)


@pytest.fixture(scope="session")
def _aerospike(aerospike_server):
    """A store for the whole run, and the sets that were there before it and are not ours to empty."""
    from latchwork.store.aerospike import AerospikeStore

    store = AerospikeStore.from_url(aerospike_server.url)
    return store, _sets(store)


@pytest.fixture
def aerospike_store(_aerospike):
    """A store on the real Aerospike server; every set that a test wrote to is truncated after it."""
    store, foreign = _aerospike
    yield store
    for name in _sets(store) - foreign:
        store._link.connect().truncate(store.namespace, name, 0)


@pytest.fixture
def aerospike_proxy(aerospike_server):
    """A proxy in front of the real server; `url` names the server through it, with timeouts of 0.7 s."""
    if aerospike_server.proxy_port is None:
        pytest.skip(f"{NO_SERVER}the one in ${servers.VARIABLE} does not send its clients to a proxy")
    made = Proxy(aerospike_server.proxy_port, aerospike_server.port)
    made.url = (
        f"aerospike://127.0.0.1:{made.port}/{aerospike_server.namespace}"
        "?services_alternate=true&socket_timeout=700&total_timeout=700"
    )
    yield made
    made.close()


@pytest.fixture(scope="session")
def zookeeper():
    """One real ZooKeeper server for the whole run; `hosts` is its connection string."""
    yield from _running(lambda: servers.started(servers.ZooKeeper()))


def _running(start):
    try:
        server = start()
    except servers.Unreachable as reason:
        pytest.skip(f"{NO_SERVER}{reason}")
    yield server
    server.close()


def _sets(store):
    lines = store._link.connect().info_random_node(f"sets/{store.namespace}").rpartition("\t")[2].strip().split(";")
    pairs = [dict(pair.split("=", 1) for pair in line.split(":") if "=" in pair) for line in lines if line]
    return {fields["set"] for fields in pairs if fields["objects"] != "0"}


def pytest_terminal_summary(terminalreporter):
    """Say in one line how many tests were skipped because a real server was missing, and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NO_SERVER in text:
            reason = text.partition(NO_SERVER)[2]
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} real-server test(s) were skipped: {reason}")
