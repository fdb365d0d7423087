"""Fixtures for real servers, and the closing summary: what was proved, and what was skipped for want of a server."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tools import servers

from .support.proof import PROPERTY, Proof
from .support.proxy import Proxy

NO_SERVER = "no real server: "

# A client of the server that a test dropped may still wait to be collected. A forked child that collects it ends with
# SIGSEGV, as the client's threads are not there.
os.register_at_fork(after_in_child=gc.freeze)


@pytest.fixture(scope="session")
def aerospike_server():
    """One real Aerospike server for the whole run."""
    yield from _running(servers.start_aerospike)


@pytest.fixture(scope="session")
def _aerospike(aerospike_server):
    """A store for the whole run, and the sets that were there before it and are not ours to empty."""
    from latchwork.store.aerospike.store import AerospikeStore

    store = AerospikeStore.from_url(aerospike_server.url)
    return store, _sets(store)


@pytest.fixture
def aerospike_store(_aerospike):
    """A store on the real Aerospike server; every set that a test wrote to is truncated after it."""
    store, foreign = _aerospike
    yield store
    for name in _sets(store) - foreign:
        store._link.connect().truncate(store.namespace, name, 0, {"timeout": 20_000})


@pytest.fixture(scope="session")
def _server_with_clock():
    yield from _running(lambda: servers.started(servers.AsdWithClock()))


@pytest.fixture
def server_with_clock(_server_with_clock):
    """A real Aerospike server whose clock `set_clock(seconds)` sets; at the beginning of each test it is right."""
    _server_with_clock.set_clock(0)
    yield _server_with_clock
    _server_with_clock.set_clock(0)


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
    """The sets that hold something, on any node."""
    found = set()
    for _, answer in store._link.connect().info_all(f"sets/{store.namespace}").values():
        for line in answer.rpartition("\t")[2].strip().split(";"):
            fields = dict(pair.split("=", 1) for pair in line.split(":") if "=" in pair)
            if fields and fields["objects"] != "0":
                found.add(fields["set"])
    return found


@pytest.fixture
def proved(record_property):
    """Reports figures for the closing table: `proved("processes", "the lock", killed=140)`."""

    def report(layer: str, subject: str, figures: dict[str, int] | None = None, **more: int) -> None:
        record_property(PROPERTY, [layer, subject, {**(figures or {}), **more}])

    return report


FIRST = (
    "tests/spark/",
    "tests/test_flights.py",
    "tests/sim/test_outages.py",
    "tests/sim/test_real_server.py",
    "tests/coord/lock/test_processes.py",
    "tests/store/aerospike/test_aerospike_outages.py",
    "tests/test_cluster.py",
    "tests/cli/",
    "tests/queue/paged/",
    "tests/test_capabilities.py",
    "tests/queue/outbox/",
    "tests/test_hung_server.py",
    "tests/queue/sharded/test_damaged_shards.py",
    "tests/queue/test_outages.py",
    "tests/queue/sharded/delayed/test_delayed.py",
    "tests/coord/election/",
    "tests/queue/sharded/test_faults.py",
    "tests/queue/sharded/consumer/test_consumer.py",
    "tests/coord/lock/",
    "tests/queue/sharded/groups/test_groups.py",
    "tests/machines/",
    "tests/store/",
)
"""Tests that take long together, begun first: a worker that begins them at the end keeps all others waiting. After
those on Spark, what waits for most of its time takes turns with what computes, so that no processor is idle."""
SPREAD = "tests/sim/"
"""Tests that share nothing, so that any worker takes any of them: they come last, and fill what the others leave."""
SESSION, JOBS = "one Spark session", "Spark jobs of their own"
ON_SPARK = ("tests/spark/", "tests/test_flights.py")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Order the tests, and let one worker have those that share a server or a session: a file's, and all of Spark's.

    Another worker has the tests that start Spark in processes of their own: more than two at once start too slowly.
    """
    on_session = {item.path for item in items if "sessions" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: _turn(item.nodeid))
    for item in items:
        if item.path in on_session:
            item.add_marker(pytest.mark.xdist_group(SESSION))
        elif item.nodeid.startswith(ON_SPARK):
            item.add_marker(pytest.mark.xdist_group(JOBS))
        elif not item.nodeid.startswith(SPREAD):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish():
    """Let the garbage collector pass over what is there now: a third of a simulation's time went into looking through
    all collected tests again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)


def _turn(nodeid):
    named = [place for place, name in enumerate(FIRST) if nodeid.startswith(name)]
    return named[0] if named else len(FIRST) + nodeid.startswith(SPREAD)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail a run of all tests that has proved less than it should; write the figures down where they are asked for."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    proof = reporter.proof = Proof.of_reports(_calls(reporter))
    proof.lacking = proof.short_of() if _is_whole(session.config, reporter) else []
    if proof.lacking and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if target := os.environ.get("LATCHWORK_PROOF"):
        Path(target).write_text(proof.as_json())


def _calls(reporter):
    reports = (report for reports in reporter.stats.values() for report in reports)
    return [report for report in reports if getattr(report, "when", None) == "call" and report.outcome != "rerun"]


def _is_whole(config, reporter):
    """Whether nothing was chosen or left out by hand, so that the floors of the whole apply."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    option = config.option
    chosen = chosen or option.keyword or option.markexpr not in ("", "not long")
    return not (chosen or option.maxfail or option.collectonly)


def pytest_terminal_summary(terminalreporter):
    """The table, the floors that were missed, in one line how many tests were skipped for want of a server, and why
    tests were run once more.
    """
    proof = getattr(terminalreporter, "proof", None)
    if proof is not None and proof.rows:
        terminalreporter.section("what was proved")
        for line in (*proof.table(), *(f"UNDER ITS FLOOR: {what}" for what in proof.lacking)):
            terminalreporter.write_line(line)
    for reason, count in sorted(_skipped(terminalreporter).items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"why run once more: {report.nodeid}", sep="-")
        terminalreporter.write_line(report.longreprtext[-4000:])


def _skipped(terminalreporter):
    """How many tests were skipped for each reason."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons
