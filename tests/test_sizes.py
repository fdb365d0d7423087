"""`make test` and `make long` are sizes of one suite: samples of matrices or all of them; no test costs much."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import backends, cost, matrix, scale

FILE = Path("tests/test_one.py")
FAILING = """
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("at", range(100))
def test_struck(at):
    assert False
"""


def item(name, *marks, **params):
    """A collected test."""
    return SimpleNamespace(
        nodeid=f"{FILE}::{name}",
        path=FILE.resolve(),
        get_closest_marker=lambda mark: mark in marks,
        callspec=SimpleNamespace(params=params),
    )


MATRIX = [item(f"test_struck[{at}]", "matrix") for at in range(100)]
OTHERS = [item("test_other"), item("test_struck_too")]


@pytest.fixture(autouse=True)
def _size(monkeypatch):
    """That of `make test`, on some day."""
    monkeypatch.setattr(scale, "SCALE", 0.1)
    monkeypatch.setenv("LATCHWORK_DAY", "2026-01-01")


def taken(*arguments):
    left_out = matrix.left_out([*MATRIX, *OTHERS], arguments)
    assert not set(map(id, OTHERS)) & set(map(id, left_out))
    return [case.nodeid for case in MATRIX if case not in left_out]


def test_a_day_has_one_sample_of_each_matrix_and_another_day_another_one(monkeypatch):
    first = taken("tests")
    assert len(first) == 10
    assert taken(str(FILE)) == first
    monkeypatch.setenv("LATCHWORK_DAY", "2026-01-02")
    assert taken("tests") != first


def test_at_scale_1_a_matrix_is_run_whole(monkeypatch):
    monkeypatch.setattr(scale, "SCALE", 1.0)
    assert len(taken("tests")) == 100


def test_a_test_that_goes_through_its_cases_takes_the_sample_of_its_day_in_their_order(monkeypatch):
    cases = range(200)
    first = matrix.sample(cases, "struck")
    assert first == sorted(first) == matrix.sample(cases, "struck")
    assert len(first) == 20
    assert matrix.sample(cases, "struck too") != first, "another test takes others"
    assert matrix.sample(range(3), "struck", least=20) == [0, 1, 2]
    monkeypatch.setenv("LATCHWORK_DAY", "2026-01-02")
    assert matrix.sample(cases, "struck") != first
    monkeypatch.setattr(scale, "SCALE", 1.0)
    assert matrix.sample(cases, "struck") == list(cases)


def test_a_soak_repeats_a_test_under_more_seeds_and_does_not_make_it_longer_as_well():
    """Else its time grows with the square of the scale, and the soak, which has measured it at scale 1, ends it."""
    code = (
        "import importlib, os\n"
        "from tests.support import scale\n"
        "from tests.coord.lock import test_processes as lock\n"
        "from tests.queue.paged import test_kills as paged, test_crash_states as crashes\n"
        "for size in ('1', '20'):\n"
        "    os.environ['LATCHWORK_SCALE'] = size\n"
        "    for one in (scale, lock, paged, crashes): importlib.reload(one)\n"
        "    print(len(lock.SEEDS), lock.TURNS, paged.STORM, crashes.SEEDS, crashes.EACH_STEP)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sizes = [[int(word) for word in line.split()] for line in found.stdout.splitlines()]
    assert sizes == [[1, 110, 300, 5, 8], [20, 110, 300, 100, 8]]


def test_a_test_that_is_named_is_run_whatever_the_sample():
    assert len(taken(f"{FILE}::test_struck")) == 100
    of_the_day = taken("tests")
    other = next(case.nodeid for case in MATRIX if case.nodeid not in of_the_day)
    assert set(taken(other)) == {*of_the_day, other}
    assert taken(f"{FILE}::test_str") == taken(f"{FILE}::test_struck_too") == of_the_day


def test_a_test_on_memory_and_sqlite_runs_on_one_of_them_unless_it_shows_that_they_are_alike(monkeypatch):
    cases = [item(f"test_promise[{at}-{store}]", store=store) for at in range(40) for store in ("memory", "sqlite")]
    alone, server = item("test_alone[memory]", store="memory"), item("test_promise[0-aerospike]", store="aerospike")
    alike = [item(f"test_alike[{store}]", store=store) for store in ("memory", "sqlite")]
    for one in alike:
        one.nodeid = f"{backends.ON_EACH[0]}test_contract.py::{one.nodeid}"
    collected = [*cases, alone, server, *alike]

    def taken(*arguments):
        left_out = matrix.left_out(collected, arguments)
        return [one for one in collected if one not in left_out]

    first = taken("tests")
    assert first[-4:] == [alone, server, *alike]
    assert [one.nodeid.rpartition("-")[0] for one in first[:-4]] == [
        one.nodeid.rpartition("-")[0] for one in cases[::2]
    ]
    assert 10 < sum(one.callspec.params["store"] == "sqlite" for one in first[:-4]) < 30
    assert taken(f"{FILE}::test_promise") == collected
    monkeypatch.setenv("LATCHWORK_DAY", "2026-01-02")
    assert taken("tests") != first
    monkeypatch.setattr(scale, "SCALE", 1.0)
    assert taken("tests") == collected


@pytest.mark.long
def test_workers_take_one_sample_and_a_failure_says_what_runs_it_alone(project, tmp_path):
    (tmp_path / "inner" / "test_one.py").write_text(FAILING)
    done = project("-n", "2", "--dist", "loadgroup", "inner", LATCHWORK_DAY="2026-01-01")
    assert "10 failed" in done.stdout
    assert "LATCHWORK_DAY=2026-01-01" in done.stdout
    assert "LATCHWORK_DAY=2026-01-01 python -m pytest 'inner/test_one.py::test_struck[" in done.stdout
    assert "memory of the largest worker: " in done.stdout


def test_files_have_the_fixtures_of_their_folder_in_whichever_order_they_are_named(project, tmp_path):
    nested = tmp_path / "inner" / "nested"
    nested.mkdir()
    (nested / "conftest.py").write_text("import pytest\n\n\n@pytest.fixture\ndef there():\n    return 1\n")
    for name in ("test_a.py", "test_b.py"):
        (nested / name).write_text("def test_it(there):\n    assert there\n")
    done = project("inner/nested/test_a.py", "inner/test_one.py", "inner/nested/test_b.py")
    assert "3 passed" in done.stdout


LEAVING = """import logging
import threading

gate = threading.Event()
left = threading.Thread(target=lambda: gate.wait(60) and logging.warning("of another test"))


def test_one():
    left.start()


def test_two(caplog):
    gate.set()
    left.join()
    logging.warning("its own")
    assert caplog.messages == ["its own"]
"""


def test_a_test_reads_no_line_of_a_thread_that_an_earlier_one_has_left(project, tmp_path):
    (tmp_path / "inner" / "test_one.py").write_text(LEAVING)
    assert "2 passed" in project("inner").stdout


SHARING = """import logging
import threading

from latchwork.aio.store import _CALLS


def done(job):
    over = threading.Event()
    _CALLS.submit(lambda: (job(), over.set()))
    assert over.wait(60)


def test_one():
    done(lambda: None)


def test_two(caplog):
    done(lambda: logging.warning("its own"))
    assert caplog.messages == ["its own"]
"""


def test_a_test_reads_the_lines_of_its_awaited_verbs_though_an_earlier_one_has_left_their_threads(project, tmp_path):
    (tmp_path / "inner" / "test_one.py").write_text(SHARING)
    assert "2 passed" in project("inner").stdout


HANGING = """import threading


def test_it():
    threading.Event().wait(60)
"""


@pytest.mark.long
def test_a_test_that_hangs_fails_with_its_stack_and_ends_the_run(project, tmp_path):
    (tmp_path / "inner" / "test_one.py").write_text(HANGING)
    exits = "faulthandler_exit_on_timeout = true"
    assert exits in Path("pyproject.toml").read_text()
    limit = ("-o", "faulthandler_timeout=1", "-o", exits.replace(" ", ""))
    done = project("-n", "2", "--dist", "loadgroup", *limit, "inner")
    assert done.returncode == 1
    assert "crashed while running 'inner/test_one.py::test_it" in done.stdout
    assert "in test_it" in done.stderr


def compute():
    end = cost.processor_time() + 0.1
    while cost.processor_time() < end:
        pass


def compute_in_a_child():
    code = "import os\nwhile os.times().user < 0.1: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("work", [compute, compute_in_a_child])
def test_a_test_over_the_limit_of_processor_time_fails_unless_it_is_marked(work, monkeypatch):
    monkeypatch.setattr(cost, "slowness", lambda: 1.0)
    for mark in ("slow", "long"):
        with cost.limited(item("test_costly", mark), 0.05):
            work()
    with pytest.raises(pytest.fail.Exception, match=r"more than 0\.05 s"), cost.limited(item("test_costly"), 0.05):
        work()


def test_a_machine_that_is_slow_at_the_same_work_raises_the_limit_and_the_failure_says_so(monkeypatch):
    monkeypatch.setattr(cost, "QUIET", cost._piece() / 1_000)
    with cost.limited(item("test_costly"), 0.05):
        compute()
    monkeypatch.setattr(cost, "slowness", lambda: 1.5)
    told = r"1\.5 times as slow as a quiet one, more than 0\.05 s"
    with pytest.raises(pytest.fail.Exception, match=told), cost.limited(item("test_costly"), 0.05):
        compute()


def test_a_machine_is_never_taken_for_quicker_than_a_quiet_one(monkeypatch):
    monkeypatch.setattr(cost, "QUIET", 1e9)
    assert cost.slowness() == 1.0
    assert gc.isenabled()


def test_a_test_that_waits_costs_no_processor_time():
    with cost.limited(item("test_idle"), 0.05):
        subprocess.run(["sleep", "0.2"], check=True)


def test_make_test_runs_on_a_real_server_the_contract_and_one_file_of_each_primitive():
    elsewhere = item("test_a", store="aerospike")
    assert backends.is_left_to_long(elsewhere)
    assert not backends.is_left_to_long(item("test_a", store="sqlite"))
    elsewhere.nodeid = "tests/coord/lock/test_lock.py::test_a[aerospike]"
    assert not backends.is_left_to_long(elsewhere)
    for place in backends.ON_EACH:
        assert Path(__file__).parents[1].joinpath(place).exists(), place
