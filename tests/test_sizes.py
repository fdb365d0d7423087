"""`make test` and `make long` are sizes of one suite: samples of matrices or all of them; no test costs much."""

from __future__ import annotations

import pytest

MATRIX = """
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("at", range(100))
def test_struck(at):
    assert FAILS != at

def test_other():
    pass
"""
COSTLY = """
import os, pytest, sys, subprocess

def test_costly():
    end = os.times().user + 0.3
    while os.times().user < end:
        pass

def test_idle():
    import time
    time.sleep(0.3)

def test_costly_child():
    subprocess.run([sys.executable, "-c", "import os\\nwhile os.times().user < 0.3: pass"], check=True)
"""


@pytest.fixture
def of_a_hundred(project, tmp_path):
    """Run a matrix of a hundred cases; the case `fails` fails."""

    def of_a_hundred(*arguments, fails=None, **environment):
        (tmp_path / "inner" / "test_one.py").write_text(MATRIX.replace("FAILS", str(fails)))
        done = project("-vv", "-k", "struck", *(arguments or ("inner",)), **environment)
        lines = [line for line in done.stdout.splitlines() if "PASSED" in line or "FAILED" in line]
        return done, {line.partition("::")[2].partition(" ")[0] for line in lines if "::test_struck" in line}

    return of_a_hundred


def test_a_day_has_one_sample_of_each_matrix_and_another_day_another_one(of_a_hundred):
    done, first = of_a_hundred(LATCHWORK_DAY="2026-01-01")
    assert len(first) == 10
    assert "LATCHWORK_DAY=2026-01-01" in done.stdout
    assert of_a_hundred(LATCHWORK_DAY="2026-01-01")[1] == first
    assert of_a_hundred(LATCHWORK_DAY="2026-01-02")[1] != first


def test_workers_take_the_same_sample(of_a_hundred):
    done, _ = of_a_hundred("-n", "2", "inner")
    assert (done.returncode, "10 passed" in done.stdout) == (0, True)


def test_at_scale_1_a_matrix_is_run_whole(of_a_hundred):
    assert len(of_a_hundred(LATCHWORK_SCALE="1")[1]) == 100


@pytest.mark.parametrize("name", ["test_struck", "test_struck[7]"])
def test_a_test_that_is_named_is_run_whatever_the_sample(of_a_hundred, name):
    found = of_a_hundred(f"inner/test_one.py::{name}")[1]
    assert len(found) == (1 if "[" in name else 100)


def test_a_failure_says_which_command_runs_the_test_alone(of_a_hundred):
    done, _ = of_a_hundred("-n", "2", "--dist", "loadgroup", "inner", LATCHWORK_SCALE="1", fails=7)
    assert "LATCHWORK_SCALE=1 python -m pytest 'inner/test_one.py::test_struck[7]'" in done.stdout


def test_a_test_over_the_limit_of_processor_time_fails_unless_it_is_marked(project, tmp_path):
    file = tmp_path / "inner" / "test_one.py"
    file.write_text(COSTLY)
    done = project("inner", LATCHWORK_CPU_LIMIT="0.2")
    assert "2 failed, 1 passed" in done.stdout
    assert "more than 0.2 s" in done.stdout
    assert project("inner").returncode == 0
    file.write_text(f"{COSTLY}\npytestmark = pytest.mark.slow\n")
    assert project("inner", LATCHWORK_CPU_LIMIT="0.2").returncode == 0


def test_a_run_says_how_much_memory_its_workers_took(of_a_hundred):
    for workers in ("0", "2"):
        assert " MB" in of_a_hundred("-n", workers, "inner")[0].stdout
