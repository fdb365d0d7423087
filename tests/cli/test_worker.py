"""`latchwork worker`, its probe, and `latchwork queue wait`, as a user and an orchestrator meet them."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import resource
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
import warnings
from contextlib import suppress

import pytest

import latchwork
from latchwork.cli import serving
from latchwork.cli.probe import Probe
from latchwork.cli.processes.parent import Plan
from latchwork.cli.serving import MOST_SLOW
from latchwork.cli.worker import _found
from latchwork.observe import observe, watch_queues
from latchwork.queue import QueueConfig, QueueRegistry, Worker
from latchwork.seams import DIED
from latchwork.store import MemoryStore, Put
from tests.support.waiting import until

JOBS = """
import latchwork
from latchwork.queue import QueueRegistry, Worker

worker = Worker(QueueRegistry(latchwork.connect(), "shop"))
other = 3

@worker.handler("orders")
def handle(delivery):
    print("handled", delivery.payload, flush=True)
"""
AWAITED = (
    JOBS.replace("from latchwork.queue import", "from latchwork.aio import connect,")
    .replace("latchwork.connect", "connect").replace("def handle", "async def handle")
)  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """A folder with a program, and the environment in which its store is known."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    url = f"sqlite:{tmp_path / 'store.db'}?synchronous=off"
    queue = QueueRegistry(latchwork.connect(url), "shop").create(QueueConfig("orders", shards=1))
    return tmp_path, {**os.environ, "LATCHWORK_STORE": url}, queue


@pytest.fixture
def command(warm):
    def run(place, *words):
        folder, environment, _ = place
        return warm.run(*words, cwd=str(folder), env=environment)

    return run


@pytest.fixture
def started(warm):
    """Starts a command that is ended with the test."""
    made = []

    def start(place, *words):
        made.append(warm.start(*words, cwd=str(place[0]), env=place[1]))
        return made[-1]

    yield start
    for one in made:
        one.close()


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as failure:
        return failure.code, failure.read().decode()


@pytest.mark.parametrize("jobs", [JOBS, AWAITED], ids=["sync", "async"])
def test_a_worker_serves_its_probes_and_drains_at_sigterm(place, started, jobs):
    folder, _, queue = place
    (folder / "jobs.py").write_text(jobs)
    queue.publish({"order": 7})
    process = started(place, "worker", "jobs:worker", "--probe", "0")
    try:
        port = int(re.search(r":(\d+)/healthz", process.stderr.readline())[1])
        assert process.stdout.readline() == "handled {'order': 7}\n"
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ready\n")
        status, text = get(port, "/metrics")
        assert status == 200
        assert "latchwork_queue_depth" in text
        status, text = get(port, "/scale/orders")
        assert status == 200
        assert json.loads(text) | {"oldest_age_s": None} == {
            "queue": "orders", "client": "shop", "ready": 0, "sideline": 0, "oldest_age_s": None, "rate": None,
            "threads": 1, "suggested_threads": 0,
        }  # fmt: skip
        assert get(port, "/scale/nowhere")[0] == 404
        assert get(port, "/../etc/passwd")[0] == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert until(lambda: queue.depth().ready == 0)


OF_THE_ENVIRONMENT = """
import os
import latchwork
from latchwork.queue import QueueRegistry, Worker

worker = Worker(QueueRegistry(latchwork.connect(), os.environ.get("LATCHWORK_CLIENT", "shop")))

@worker.handler("orders")
def handle(delivery):
    os.kill(os.getpid(), 15)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["environment", "jobs"])
def test_the_store_and_the_client_of_the_command_are_those_of_its_module_or_refused(place, command, tmp_path, name):
    folder, _, _ = place
    (folder / "environment.py").write_text(OF_THE_ENVIRONMENT)
    url = f"sqlite:{tmp_path / 'other.db'}?synchronous=off"
    queue = QueueRegistry(latchwork.connect(url), "bakery").create(QueueConfig("orders", shards=1))
    queue.publish("m")
    done = command(place, "worker", "--store", url, "--client", "bakery", f"{name}:worker")
    if name == "jobs":  # which names its client itself
        assert done.returncode == 2
        assert "--client is 'bakery', and the worker of jobs:worker is of client 'shop'" in done.stderr
    else:
        assert (done.returncode, queue.depth().ready) == (0, 0), done.stderr


FAILING = """
import logging
import latchwork
from latchwork.queue import QueueRegistry, Worker

CONFIGURE

log = logging.getLogger("shop")
worker = Worker(QueueRegistry(latchwork.connect(), "shop"))

@worker.handler("orders")
def handle(delivery):
    log.info("order %s comes", delivery.payload["order"])
    raise ValueError("no such order")
"""


@pytest.mark.parametrize("watched", [False, True])
def test_the_probe_shows_the_queues_once_beside_the_programs_own_telemetry(watched, monkeypatch):
    prometheus_client = pytest.importorskip("prometheus_client")
    from latchwork.observe.prometheus import PrometheusTelemetry

    own = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", own)
    telemetry = PrometheusTelemetry(own)
    queues = QueueRegistry(observe(MemoryStore(), telemetry), "shop")
    queues.create(QueueConfig("orders", shards=1)).publish(1)
    if watched:
        watch_queues(queues, telemetry)
    status, _, text = Probe(Worker(queues), "127.0.0.1", 0).answer("/metrics")
    assert status == 200
    assert text.count(b'latchwork_queue_depth{part="ready",queue="orders"} 1.0') == 1, text.decode()
    assert b"latchwork_store_calls" in text


@pytest.mark.parametrize(
    ("configure", "options", "form"),
    [
        ("", (), r"\d{4}-\S+ \S+ (INFO|WARNING) \S+ "),
        ("logging.basicConfig(level=logging.INFO, format='MINE %(levelname)s %(name)s %(message)s')", (), "MINE "),
        ("", ("--log-level", "warning"), r"\d{4}-\S+ \S+ WARNING "),
    ],
    ids=["as-it-is", "configured-by-the-module", "told-otherwise"],
)
def test_a_worker_logs_its_life_and_each_failure_where_the_module_wants_it(place, started, configure, options, form):
    folder, _, queue = place
    (folder / "failing.py").write_text(FAILING.replace("CONFIGURE", configure))
    message_id = queue.publish({"order": 7, "card": "4111-1111"})
    process = started(place, "worker", "failing:worker", *options)
    seen = []
    try:
        for line in process.stderr:
            seen.append(line)
            if "ValueError: no such order" in line and " raised at " not in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
    said = "".join(seen)
    assert f"the handler of 'orders' raised at message {message_id}, attempt 1: ValueError: no such order" in said
    assert 'raise ValueError("no such order")' in said, "its traceback"
    assert "4111" not in said
    life = ("the worker of 'shop' works (", " drains: ", " has stopped; ", "INFO shop order 7 comes")
    assert [one in said for one in life] == ["--log-level" not in options] * 4
    assert not [line for line in seen if "latchwork.worker" in line and not re.match(form, line)]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("jobs", "MODULE:NAME"),
        ("nowhere:worker", "no module 'nowhere'"),
        (".jobs:worker", "is not the name of a module"),
        ("shop..jobs:worker", "is not the name of a module"),
        ("jobs:nothing", "has no 'nothing'"),
        ("jobs:other", "is a int; it must be a Worker of latchwork.queue or of latchwork.aio"),
    ],
)
def test_what_is_no_worker_is_refused_in_one_line(place, command, where, said):
    done = command(place, "worker", where)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_fails_by_itself_shows_where(place, command):
    done = command(place, "worker", "broken:worker")
    assert done.returncode == 1
    assert "nothing_of_that_name" in done.stderr


def test_a_script_can_wait_for_a_depth(place, command):
    place[2].publish_many(range(3))
    done = command(place, "--json", "queue", "wait", "orders", "--client", "shop", "--depth", "3", "--timeout", "20")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"queue": "orders", "ready": 3})
    done = command(place, "queue", "wait", "orders", "--client", "shop", "--depth", "4", "--timeout", "0")
    assert done.returncode == 4
    assert "fewer than 4" in done.stderr


def test_doctor_is_red_where_nobody_has_done_the_upkeep(place, command, tmp_path):
    registry = place[2].registry
    done = command(place, "doctor", "--client", "shop")
    assert "upkeep of shop: every queue was swept in time; nobody leads yet" in done.stdout
    place[2].publish("it waits")
    long_ago = Put("createdAt", 1_000_000)
    registry.store.operate(registry.records.key("orders"), long_ago, repeatable=True)
    done = command(place, "doctor", "--client", "shop")
    assert done.returncode == 1
    assert re.search(
        r"problem +no upkeep of shop: nobody leads yet; .*queue orders not swept for \d+ days", done.stdout
    )


# ---- the probe, and clients that it cannot trust


@pytest.fixture
def probe():
    """The probe of a worker in this process."""
    store = MemoryStore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = QueueRegistry(store, "shop")
        registry.create(QueueConfig("orders", shards=1, unsafe_limits=True))
    worker = Worker(registry, upkeep=False)
    worker.handler("orders")(print)
    with worker, Probe(worker, "127.0.0.1", 0) as probe:
        yield probe


SILENT = (
    b"",
    b"GET /healthz",
    b"GET /healthz HTTP/1.1\r\nHost: h\r\n",
    b"GET /scale/orders HTTP/1.1\r\n\r\n",
    b"\0" * 9000,
)
"""What a client says that then says, and reads, nothing more."""


def test_a_thousand_silent_clients_delay_neither_the_answers_of_others_nor_the_end(probe, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 600.0)  # with which the server would end them in the end
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))  # both ends are in this process
    silent = []
    for number in range(1000):
        one = socket.create_connection(("127.0.0.1", probe.port), timeout=10)
        silent.append(one)
        with suppress(OSError):  # many are closed, as there is room for 256
            one.sendall(SILENT[number % len(SILENT)])
        if number % 100 == 0:
            assert get(probe.port, "/healthz") == (200, "ok\n")
    assert get(probe.port, "/readyz") == (200, "ready\n")
    assert until(lambda: get(probe.port, "/scale/orders")[0] == 200)
    probe._server.stop()
    until(lambda: not probe._server._task.is_alive())
    for one in silent:
        one.close()


def test_a_store_that_is_silent_delays_neither_health_nor_the_end(probe, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 600.0)  # with which the server would end its clients in the end
    asked, over = threading.Event(), threading.Event()

    def hang(*_):
        asked.set()
        over.wait(60)
        return {"queue": "orders"}

    probe._scale = hang
    some = [socket.create_connection(("127.0.0.1", probe.port)) for _ in range(MOST_SLOW)]
    for one in some:
        one.sendall(b"GET /scale/orders HTTP/1.0\r\n\r\n")
    assert asked.wait(20)
    until(lambda: probe._server._slow == MOST_SLOW)
    assert get(probe.port, "/scale/orders")[0] == 503
    assert get(probe.port, "/healthz") == (200, "ok\n")
    probe._server.stop()
    until(lambda: not probe._server._task.is_alive())
    over.set()
    for one in some:
        one.close()


def test_health_says_that_a_thread_was_ended_by_an_error(probe, monkeypatch):
    monkeypatch.setitem(DIED, "shop-upkeep-1", "MemoryError")
    status, text = get(probe.port, "/healthz")
    assert status == 503
    assert "shop-upkeep-1 was ended by MemoryError" in text


def test_what_is_no_get_is_refused_and_the_probe_goes_on(probe):
    for said in (b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"\xff \n\n"):
        with socket.create_connection(("127.0.0.1", probe.port), timeout=10) as client:
            client.sendall(said)
            assert client.recv(100).startswith(b"HTTP/1.0 405 ")
    assert get(probe.port, "/healthz") == (200, "ok\n")


BLOCKING = """
import logging
import threading


class Blocks(logging.Handler):
    def emit(self, record):
        if "raised" in record.getMessage():
            print("blocks", flush=True)
            threading.Event().wait()


logging.getLogger().addHandler(Blocks())
logging.getLogger().setLevel("INFO")
"""


def test_a_log_handler_that_blocks_keeps_neither_the_probe_nor_the_end_waiting(place, started):
    folder, _, queue = place
    (folder / "jobs.py").write_text(BLOCKING + JOBS.replace('shop")', 'shop"), grace=0.5') + "    raise ValueError\n")
    queue.publish({"order": 7})
    process = started(place, "worker", "jobs:worker", "--probe", "0")
    try:
        port = int(re.search(r":(\d+)/healthz", process.stderr.readline())[1])
        assert process.stdout.readline() == "handled {'order': 7}\n"
        assert process.stdout.readline() == "blocks\n"
        assert get(port, "/healthz") == (200, "ok\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1, "a handler was given up"
    finally:
        process.kill()


def test_an_attribute_error_of_the_program_is_shown_as_that_and_not_as_a_wrong_name(tmp_path, monkeypatch):
    (tmp_path / "program_with_a_typo.py").write_text("import os\nworker = os.no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _found("program_with_a_typo:worker")


PROGRAM = """
import logging, os
from latchwork.queue import QueueRegistry, Worker
from latchwork.store import MemoryStore

class Quick(Worker):
    def run(self):
        print(os.environ["LATCHWORK_STORE"], self.registry.client_id)
        return self.registry.client_id != "cut"

worker = Quick(QueueRegistry(MemoryStore(), os.environ.get("LATCHWORK_CLIENT", "shop")))
fixed = Quick(QueueRegistry(MemoryStore(), "shop"))
logging.getLogger("latchwork.store").warning("the store is away")
"""


@pytest.fixture
def program(lw, tmp_path, monkeypatch):
    """Runs the command in this process, with a program whose worker ends at once; nothing of it is left behind."""
    (tmp_path / "quick_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    for name in ("LATCHWORK_STORE", "LATCHWORK_CLIENT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield lambda *words, before=(), name="worker": lw(*before, "worker", f"quick_program:{name}", *words)
    sys.modules.pop("quick_program", None)


def test_a_program_finds_the_store_and_the_client_of_the_command(program, sqlite_url, monkeypatch):
    done = program()
    assert (done.code, done.out, done.err) == (0, f"{sqlite_url} shop\n", "")
    sys.modules.pop("quick_program")
    done = program("--client", "cut")
    assert (done.code, done.out) == (1, f"{sqlite_url} cut\n"), "a handler was given up"
    refused = program("--client", "other", name="fixed")
    assert refused.code == 2
    assert "--client is 'other', and the worker of quick_program:fixed is of client 'shop'" in refused.err
    monkeypatch.setenv("LATCHWORK_CLIENT", "other")
    assert program(name="fixed").code == 0, "what is in the environment may be for others"


def test_the_probe_of_a_worker_is_told_where_it_is(program):
    assert re.fullmatch(r"latchwork: probes at http://127\.0\.0\.1:\d+/healthz\n", program("--probe", "0").err)
    assert "http://localhost:" in program("--probe", "0", "--probe-host", "localhost").err


@pytest.mark.parametrize(
    ("before", "words", "levels"),
    [
        ((), (), ("INFO", "WARNING")),
        (("-v",), (), ("INFO", "INFO")),
        (("-vv",), (), ("DEBUG", "DEBUG")),
        (("-vv",), ("--log-level", "error"), ("ERROR", "ERROR")),
    ],
)
def test_the_level_of_the_log_is_that_of_the_command_or_of_the_program(program, monkeypatch, before, words, levels):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # of pytest, beside which the command sets up none
    done = program(*words, before=before)
    assert (done.code, done.err.count("the store is away")) == (0, 1), "what is logged while it loads is seen"
    assert (logging.getLevelName(root.level), len(root.handlers)) == (levels[0], 1)
    root.handlers[:] = [own := logging.NullHandler()]
    root.setLevel("WARNING")
    assert program(*words, before=before).code == 0
    assert (logging.getLevelName(root.level), root.handlers) == (levels[1], [own])


def test_a_child_begins_to_listen_before_its_program_is_loaded_and_runs_its_worker(program, monkeypatch):
    class Listens:
        name = "child 1"

        def __init__(self, given):
            print(given)

        def begin(self):
            assert "quick_program" not in sys.modules
            print("it listens")

        def run(self, worker):
            print(worker.registry.client_id)
            return True

    monkeypatch.setattr("latchwork.cli.worker.Child", Listens)
    done = program("--child", "1:2:3", "--probe", "0")
    assert (done.code, done.out, done.err) == (0, "1:2:3\nit listens\nshop\n", "")


def test_a_worker_whose_handlers_are_awaited_is_found_too(program, tmp_path, monkeypatch):
    (tmp_path / "quick_program.py").write_text(AWAITED)
    monkeypatch.setenv("LATCHWORK_STORE", "memory:")
    found, _ = _found("quick_program:worker")
    assert found is sys.modules["quick_program"].worker.of


class Ends:
    """A parent that ends at once."""

    seen = None

    def __init__(self, plan):
        type(self).seen = plan

    def run(self):
        return 7


@pytest.mark.parametrize(
    ("words", "said", "facts"),
    [
        (("--processes", "3"), (), {"processes": 3}),
        (("--max-messages", "5"), (), {"max_messages": 5}),
        (("--max-memory", "512M"), (), {"max_memory": 512 * 2**20}),
        (("--reload",), (), {"reload": True}),
        (
            ("--processes", "1", "--client", "c", "--log-level", "debug"),
            ("--log-level", "debug", "--client", "c"), {},
        ),
    ],
)  # fmt: skip
def test_a_parent_runs_the_command_with_the_options_of_its_children_and_ends_with_its_code(
    program, monkeypatch, words, said, facts
):
    monkeypatch.setattr("latchwork.cli.worker.Parent", Ends)
    done = program(*words)
    assert (done.code, done.out, done.err) == (7, "", "")
    assert Ends.seen == Plan(["worker", "quick_program:worker", *said], **facts)
    done = program(*words, "--probe", "0")
    assert done.code == 7
    assert "probes at http://127.0.0.1:" in done.err


def test_a_parent_leaves_the_client_of_the_environment_to_it_and_refuses_what_its_children_would(program, monkeypatch):
    monkeypatch.setattr("latchwork.cli.worker.Parent", Ends)
    monkeypatch.setenv("LATCHWORK_CLIENT", "other")
    assert program("--processes", "2").code == 7
    assert Ends.seen.command == ["worker", "quick_program:worker"]
    assert program("--processes", "2", name="").code == 2
    assert program("--processes", "2", "--max-memory", "1K").code == 2


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("quick_program", "write MODULE:NAME"),
        ("quick_program:", "write MODULE:NAME"),
        (":worker", "write MODULE:NAME"),
        ("quick-program:worker", "is not the name of a module"),
        ("no_such_program:worker", "no module 'no_such_program'"),
        ("no_such_program.jobs:worker", "no module 'no_such_program.jobs'"),
        ("quick_program:nothing", "module quick_program has no 'nothing'"),
        ("quick_program:os", "quick_program:os is a module; it must be a Worker"),
    ],
)
def test_what_does_not_name_a_worker_is_a_users_mistake(program, lw, where, said):
    done = lw("worker", where)
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_module_that_a_program_needs_is_missed_by_its_own_name(program, tmp_path):
    (tmp_path / "quick_program.py").write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _found("quick_program:worker")
