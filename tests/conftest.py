"""Fixtures for real servers, and the closing summary: what was proved, and what was skipped for want of a server."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import signal
import threading
from pathlib import Path

import pytest

from latchwork import logs
from tools import servers

from .support import backends, cost, matrix, surfaces
from .support.project import project  # noqa: F401 - a fixture
from .support.proof import PROPERTY, Proof, floors
from .support.proxy import Proxy
from .support.real_servers import NO_SERVER, or_skip
from .support.scale import FIRST, SCALE
from .support.surfaces import surface  # noqa: F401 - a fixture
from .support.waiting import described

PATIENT = {"timeout": 20_000}
"""Milliseconds for an answer; the client's own second is too short for a busy machine."""

# What `nohup` starts ignores SIGHUP, and so does each process that a test starts: several are about that signal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A client of the server that a test dropped may still wait to be collected. A forked child that collects it ends with
# SIGSEGV, as the client's threads are not there.
# So nothing is collected from before the fork until the child has let go of what was there.
os.register_at_fork(before=gc.disable, after_in_parent=gc.enable, after_in_child=lambda: (gc.freeze(), gc.enable()))


@pytest.fixture(autouse=True)
def _logs_as_before():
    """Forget that this process was told to end, as a test may: from then on logs are written in another way."""
    yield
    logs._ends.clear()


EARLIER = pytest.StashKey[frozenset[threading.Thread]]()
"""The threads that there were before a test that reads the log, without those of all tests."""
OF_ALL = ("awaited", "latchwork-aio")
"""How the names of threads begin that work for each test: those of awaited verbs."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Note which threads earlier tests have left."""
    if "caplog" in item.fixturenames:
        left = set(threading.enumerate()) - {threading.current_thread()}
        item.stash[EARLIER] = frozenset(one for one in left if not one.name.startswith(OF_ALL))


@pytest.fixture
def caplog(caplog, request):
    """The log, without the lines of threads that earlier tests have left: one that renewed a grant which was dropped
    says so when the next renewal is due.
    """

    def is_ours(_):
        return threading.current_thread() not in request.node.stash[EARLIER]

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)


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
        _client(store).truncate(store.namespace, name, 0, PATIENT)


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
    with or_skip():
        server = start()
    yield server
    server.close()


def _client(store):
    """The store's client, which a test may have closed, connected."""
    described(store)
    return store._link.connect()


def _sets(store):
    """The sets that hold something, on any node."""
    found = set()
    for _, answer in _client(store).info_all(f"sets/{store.namespace}", PATIENT).values():
        for line in answer.rpartition("\t")[2].strip().split(";"):
            fields = dict(pair.split("=", 1) for pair in line.split(":") if "=" in pair)
            if fields and fields["objects"] != "0":
                found.add(fields["set"])
    return found


@pytest.fixture(scope="session")
def warm():
    """Starts processes of the command, and programs, by a fork of one that has loaded the command."""
    from .support.warm import Warm  # which forks, as not every system can

    made = Warm()
    yield made
    made.close()


@pytest.fixture
def proved(record_property):
    """Reports figures for the closing table: `proved("processes", "the lock", killed=140)`."""

    def report(layer: str, subject: str, figures: dict[str, int] | None = None, **more: int) -> None:
        record_property(PROPERTY, [layer, subject, {**(figures or {}), **more}])

    return report


EARLY = (
    "tests/test_forks",
    "tests/spark/",
    "tests/test_flights.py",
    "tests/sim/test_exhaustive_faults.py",
    "tests/sim/test_outages.py",
    "tests/sim/test_real_server.py",
    "tests/coord/lock/test_processes.py",
    "tests/store/aerospike/test_aerospike_outages.py",
    "tests/test_cluster.py",
    "tests/fuzz/test_stored_state.py",
    "tests/cli/",
    "tests/queue/paged/",
    "tests/test_capabilities.py",
    "tests/queue/outbox/",
    "tests/test_hung_server.py",
    "tests/sim/test_counterexamples.py",
    "tests/queue/sharded/test_damaged_shards.py",
    "tests/queue/test_outages.py",
    "tests/queue/sharded/delayed/test_delayed.py",
    "tests/coord/election/",
    "tests/queue/sharded/consumer/test_consumer.py",
    "tests/test_docs.py",
    "tests/sim/test_mutants.py",
    "tests/coord/lock/",
    "tests/queue/sharded/groups/test_groups.py",
    "tests/fuzz/",
    "tests/machines/",
    "tests/observe/",
    "tests/store/",
)
"""Tests that take long together, begun first: a worker that begins them at the end keeps all others waiting. After
those on Spark, what waits for most of its time takes turns with what computes, so that no processor is idle. Before
all come those that fork for each case: the more memory a worker has, the more a fork costs."""
SPREAD = "tests/sim/"
"""Tests that share nothing, so that any worker takes any of them: they come last, and fill what the others leave."""
SESSION, JOBS = "one Spark session", "Spark jobs of their own"
ON_SPARK = ("tests/spark/", "tests/test_flights.py")
ZOOKEEPER, AEROSPIKE = "one ZooKeeper", ("the first Aerospike", "the second Aerospike")


NAME = pytest.StashKey[str]()
"""A test's node id; xdist adds the group of each to it."""


def pytest_generate_tests(metafunc):
    surfaces.parametrize(metafunc)


def pytest_configure(config):
    """Collect the files of a folder one after the other, however they were named: pytest 9.1 finds the fixtures of a
    folder's conftest.py only for those that stand before a file of the folder above (pytest issue 14971).
    """
    config.args.sort(key=lambda argument: str(Path(argument).absolute()))
    gc.disable()  # until all tests are collected: nothing of them is garbage
    if config.pluginmanager.hasplugin("xdist"):
        config.option.maxworkerrestart = 0  # a new worker would begin the test again that ended the one before
    if hasattr(config, "workerinput"):
        atexit.register(_end_at_once, os.getpid())


def _end_at_once(worker):
    """End a worker of pytest-xdist after what the tests have registered for its exit: to free half a gigabyte object by
    object takes seconds.
    """
    if os.getpid() == worker:
        os._exit(0)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Leave out what is not in this run's samples, order the rest, and say which tests one worker is to have.

    Those of a file share a server, and all of Spark's share a session. Another worker has the tests that start Spark in
    processes of their own: more than two at once start too slowly. Those on the other servers are for one worker, or
    two, though their files have others: each server costs seconds to start, and computes while nobody asks it. At
    scale 1 they are too many for that. Those on one server that was there before are for one worker always.
    """
    left_out = set(matrix.left_out(items, config.args))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        item.stash[NAME] = item.nodeid
        if backends.is_left_to_long(item):
            item.add_marker(pytest.mark.long)
    on_session = {item.path for item in items if "sessions" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: _turn(item.nodeid))
    on_aerospike: dict[Path, int] = {}
    is_shared = servers.VARIABLE in os.environ
    for item in items:
        needs = _needs(item) if SCALE < 1 or is_shared else ()
        if is_shared and "aerospike" in needs:  # of two workers one would empty what the other's test has written
            item.add_marker(pytest.mark.xdist_group(AEROSPIKE[0]))
        elif item.path in on_session:
            item.add_marker(pytest.mark.xdist_group(SESSION))
        elif item.nodeid.startswith(ON_SPARK):
            item.add_marker(pytest.mark.xdist_group(JOBS))
        elif "zookeeper" in needs:
            item.add_marker(pytest.mark.xdist_group(ZOOKEEPER))
        elif "aerospike" in needs:
            turn = on_aerospike.setdefault(item.path, len(on_aerospike))
            item.add_marker(pytest.mark.xdist_group(AEROSPIKE[turn % len(AEROSPIKE)]))
        elif not item.nodeid.startswith(SPREAD):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _needs(item):
    """What the test is run on, by the first words of its fixtures and the last ones of its parameters."""
    case = getattr(item, "callspec", None)
    values = () if case is None else case.params.values()
    return {
        *(name.partition("_")[0] for name in getattr(item, "fixturenames", ())),
        *(value.rpartition("-")[2] for value in values if isinstance(value, str)),
    }


def pytest_sessionstart(session):
    """Say which samples this run takes."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        sampled = "" if SCALE >= 1 else f", samples of the matrices: LATCHWORK_DAY={matrix.day()}"
        reporter.write_line(f"scale {SCALE:g}{sampled}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that takes too much of the processor."""
    with cost.limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Print beside a failure the command that runs the test alone."""
    report = yield
    if report.failed:
        command = f"python -m pytest {shlex.quote(item.stash.get(NAME, item.nodeid))}"
        report.sections.append(("alone", " ".join([*_settings(), command])))
    return report


def _settings():
    """The variables that a test may depend on, as this run has them."""
    if SCALE != 0.1:
        yield f"LATCHWORK_SCALE={SCALE:g}"
    if SCALE < 1:
        yield f"LATCHWORK_DAY={matrix.day()}"
    if FIRST:
        yield f"LATCHWORK_FIRST={FIRST}"


def pytest_collection_finish():
    """Let the garbage collector pass over what is there now: a third of a simulation's time went into looking through
    all collected tests again and again.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(5_000)


def _turn(nodeid):
    named = [place for place, name in enumerate(EARLY) if nodeid.startswith(name)]
    return named[0] if named else len(EARLY) + nodeid.startswith(SPREAD)


MEMORY = pytest.StashKey[list[int]]()
"""The most memory that each worker had, in megabytes."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Keep how much memory the worker took."""
    if "memory" in getattr(node, "workeroutput", {}):
        node.config.stash.setdefault(MEMORY, []).append(node.workeroutput["memory"])


def _memory(config):
    return config.stash.get(MEMORY, [cost.peak_memory()])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail a run of all tests that has proved less than it should; write the figures down where they are asked for."""
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["memory"] = cost.peak_memory()
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    proof = reporter.proof = Proof.of_reports(_calls(reporter))
    proof.lacking = proof.short_of(floors()) if _is_whole(session.config) else []
    if (taken := max(_memory(session.config))) > cost.MEMORY:
        proof.lacking.append(f"a worker took {taken:,} MB of memory, at most {cost.MEMORY:,} are allowed")
    if proof.lacking and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if target := os.environ.get("LATCHWORK_PROOF"):
        Path(target).write_text(proof.as_json())


def _calls(reporter):
    reports = (report for reports in reporter.stats.values() for report in reports)
    return [report for report in reports if getattr(report, "when", None) == "call"]


def _is_whole(config):
    """Whether nothing was chosen or left out by hand, so that the floors of the whole apply."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    option = config.option
    chosen = chosen or option.keyword or option.markexpr not in ("", "not long")
    return not (chosen or option.maxfail or option.collectonly)


def pytest_terminal_summary(terminalreporter):
    """The table, the floors that were missed, how much memory the largest worker took, and in one line how many tests
    were skipped for want of a server.
    """
    proof = getattr(terminalreporter, "proof", None)
    if proof is not None and proof.rows:
        terminalreporter.section("what was proved")
        for line in proof.table():
            terminalreporter.write_line(line)
    for what in getattr(proof, "lacking", ()):
        terminalreporter.write_line(f"NOT GOOD ENOUGH: {what}")
    for reason, count in sorted(_skipped(terminalreporter).items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
    terminalreporter.write_line(f"memory of the largest worker: {max(_memory(terminalreporter.config)):,} MB")


def _skipped(terminalreporter):
    """How many tests were skipped for each reason."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons
