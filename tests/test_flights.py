"""The main job on real flights: its answer, its check, a farm that is killed and run again."""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.spark.conftest import PYTHONPATH

EXAMPLE = Path(__file__).parents[1] / "examples" / "flights"
SUMMARY = re.compile(
    r"^partitions counted +6 of 6\ntasks that were run again +(\d+)\na plain counter would say +(\d+)\n"
    r"flights published +33,678\nflights consumed +33,678\nflights in the answer +33,678 of 33,678\n"
    r"messages of the killed swept +(\d+)\nthe answer without Spark is +equal\nOK: lost 0, doubled 0$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def example():
    """The example's modules, imported as its own script imports them."""
    sys.path.insert(0, str(EXAMPLE))
    yield {
        name: import_module(name)
        for name in ("archive", "data", "farm", "java", "plan", "processes", "report", "run", "watch")
    }
    sys.path.remove(str(EXAMPLE))
    for path in EXAMPLE.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def flights(example):
    return example["data"].load()


def start(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "LATCHWORK_STORE"}
    command = [sys.executable, str(EXAMPLE / "run.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=clean | {"PYTHONPATH": PYTHONPATH} | environment,
        preexec_fn=_hears_ctrl_c,  # noqa: PLW1509 - it only sets a signal
    )  # fmt: skip


def _hears_ctrl_c() -> None:
    """Tests that run in a shell's background would pass on that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def run():
    """Starts the coordinator; none is left behind by a test that fails."""
    started = []
    yield lambda *arguments: started.append(start(*arguments)) or started[-1]
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=90)


# ---- the data and the check


def test_all_flights_are_there(flights):
    assert len(flights) == 336_776
    assert set(flights["origin"]) == {"EWR", "JFK", "LGA"}


def test_the_direct_computation_counts_what_did_not_fly_but_not_its_delay(example):
    import pandas as pd  # here, as each worker imports this file, and is 90 MB larger with it, at each fork too

    flights = pd.DataFrame(
        [("JFK", "AA", 8, 10.0, 5.0), ("JFK", "AA", 8, None, None), ("JFK", "AA", 8, -2.0, None)],
        columns=["origin", "carrier", "hour", "dep_delay", "arr_delay"],
    )
    assert example["data"].direct(flights).loc[("JFK", "AA", 8)].tolist() == [3, 2, 1, 8, 5]


def test_what_is_lost_and_what_is_doubled_cannot_cancel_out(example, flights):
    direct = example["data"].direct(flights)
    wrong = direct.copy()
    wrong.iloc[0, 0] += 7
    wrong = wrong.drop(wrong.index[5])
    assert example["report"].compare(wrong, direct) == (int(direct.iloc[5, 0]), 7)
    assert example["report"].compare(direct, direct) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"counted": 23},
        {"lost": 1, "doubled": 1},
        {"flights": 336_775},
        {"same": False},
        {"published": 1},
        {"consumed": 1},
    ],
    ids=",".join,
)
def test_the_outcome_is_wrong_where_anything_differs(example, wrong):
    right = {
        "farms": 3, "partitions": 24, "counted": 24, "attempts": 36, "flights": 336_776, "expected": 336_776,
        "lost": 0, "doubled": 0, "published": 336_776, "consumed": 336_776, "swept": 3, "same": True,
    }  # fmt: skip
    outcome = example["report"].Outcome
    assert outcome(**right).right
    told, failed = str(outcome(**right)), str(outcome(**right | wrong))
    assert "flights in the answer            336,776 of 336,776" in told
    assert told.endswith("\nOK: lost 0, doubled 0")
    assert failed.rpartition("\n")[2].startswith("FAILED: lost ")
    assert max(map(len, told.splitlines())) <= 60
    assert not outcome(**right | wrong).right


def test_the_table_fits_a_narrow_terminal(example, flights):
    table = example["report"].table(example["data"].direct(flights))
    assert max(map(len, table.splitlines())) <= 47
    assert len(table.splitlines()) == 2 + flights["carrier"].nunique()


# ---- before it starts


def test_java_is_given_its_archive_in_a_directory_whose_name_has_a_space(example, tmp_path):
    import pyspark

    option = example["farm"].option("SharedArchiveFile", tmp_path / "a b" / "flights.jsa")
    spark = Path(pyspark.__file__).parent
    launcher = ["java", "-cp", f"{spark / 'jars'}/*", "org.apache.spark.launcher.Main"]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--conf", f"spark.driver.extraJavaOptions=-Xint {option}", "x.py"]
    environment = os.environ | {"SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": "2.13"}
    said = subprocess.run([*launcher, *submit], env=environment, capture_output=True, text=True, check=True).stdout
    assert f"-XX:SharedArchiveFile={tmp_path / 'a b' / 'flights.jsa'}" in said.split("\0")


@pytest.mark.parametrize("java", ["exit 1", "exit 0"])
def test_an_archive_that_java_has_not_made_is_an_error(example, monkeypatch, tmp_path, java):
    archive = example["archive"]
    process = subprocess.Popen(["sh", "-c", f"read line; {java}"], stdin=subprocess.PIPE)
    monkeypatch.setattr(archive, "ARCHIVE", tmp_path / "flights.jsa")
    monkeypatch.setattr(archive, "session", lambda *_: None)
    monkeypatch.setattr(archive, "run", lambda *_: None)
    monkeypatch.setattr(archive, "SparkContext", SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit, match="no archive"):
        archive.main()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_java_comes_up_for_its_archive_waits_until_it_has(example, monkeypatch):
    """PySpark would leave Java behind."""
    steps = []

    def session(*_):
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("up")

    monkeypatch.setattr(example["archive"], "session", session)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            example["archive"].started("")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["up"]


@pytest.mark.parametrize(
    "java", [("", "none was found"), ('openjdk version "11.0.2"', "11"), ('java version "1.8.0"', "8")]
)
def test_java_that_is_missing_or_too_old_is_one_clear_line(example, monkeypatch, capsys, tmp_path, java):
    says, problem = java
    if says:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit) as ended:
        example["run"].main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"Java 17 or newer is needed.*{problem}.*install", line)


@pytest.mark.long
def test_a_program_without_java_says_so_and_nothing_else(tmp_path):
    run = start(JAVA_HOME=str(tmp_path))
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert output.startswith("Java 17 or newer is needed")
    assert len(output.splitlines()) == 1


def test_the_java_of_this_machine_is_recognised(example):
    assert example["java"].java_version() >= 17


@pytest.mark.long
def test_a_directory_that_is_no_run_is_refused(tmp_path):
    run = start("--resume", tmp_path)
    assert "it has no plan.json" in run.communicate(timeout=60)[0]
    assert run.returncode != 0


@pytest.mark.parametrize(("option", "value"), [("--every", "0"), ("--partitions", "0"), ("--timeout", "-1")])
def test_an_option_that_makes_no_run_is_refused_with_its_limit(example, monkeypatch, capsys, option, value):
    monkeypatch.setattr(sys, "argv", ["run.py", option, value])
    with pytest.raises(SystemExit):
        example["run"].parse()
    assert re.search(rf"argument {option}: it is {value}, and must be [01] or more", capsys.readouterr().err)


def test_an_every_that_leaves_a_farm_without_flights_names_the_farm(example, flights, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--every", "400000"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(example["data"], "load", lambda: flights)
    monkeypatch.setattr(example["run"], "require_java", lambda: None)
    monkeypatch.setattr(example["run"], "begin", lambda *_: pytest.fail("it began"))
    with pytest.raises(SystemExit, match="leaves none to JFK, LGA: give a smaller --every"):
        example["run"].main()


def test_a_farm_that_fails_is_named_with_its_log_and_the_command_that_runs_it_again(example, tmp_path):
    (tmp_path / "fails.py").write_text("raise SystemExit(1)")
    said = queue.Queue()
    with example["processes"].Children(tmp_path, lambda *event: said.put(event)) as children:
        children.start("farm JFK", str(tmp_path / "fails.py"), again="run.py --farm JFK")
        text, mark = said.get(timeout=60)
    log = tmp_path / "farm JFK.log"
    assert (text, mark) == (f"farm JFK failed, see {log}; to run it again: run.py --farm JFK", "farm JFK failed")


def test_the_command_that_goes_on_can_be_pasted_where_a_directory_has_a_space(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a b/run.py", "--every", "2"])
    said = example["watch"].again(example["plan"].Plan(Path("/c d/run"), "job", 2), "--farm", "JFK")
    assert shlex.split(said) == [sys.executable, "/a b/run.py", "--resume", "/c d/run", "--farm", "JFK"]


@pytest.mark.long
def test_a_wait_that_times_out_names_every_missing_party(tmp_path):
    run = start("--partitions", 2, "--timeout", 0.5, "--dir", tmp_path / "run")
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 3
    assert "missing: EWR/0, EWR/1, JFK/0, JFK/1, LGA/0, LGA/1\n" in output
    command = re.search(r"to go on: (.*)\n", output)[1]
    assert command == f"{sys.executable} {EXAMPLE / 'run.py'} --resume {tmp_path / 'run'}"


def test_a_wait_ends_only_once_no_farm_has_got_on_for_its_time(example, monkeypatch):
    """A loaded machine takes longer, and gets there."""
    watch = example["watch"].Watch(SimpleNamespace(partitions=8), {})
    now, steps, limit = [0.0], count(), 900
    monkeypatch.setattr(example["watch"].Watch, "passed", property(lambda _: now[0]))
    monkeypatch.setattr(watch, "_step", lambda *_: str(next(steps) if now[0] < limit else "no further"))

    def wait(timeout, progress):
        now[0] += timeout
        progress(SimpleNamespace(counts={}))
        return False

    assert not watch.wait(SimpleNamespace(wait=wait), 300, lambda: None)
    assert limit + 300 <= now[0] <= limit + 303


def test_ctrl_c_leaves_no_farm_behind(tmp_path):
    run = start("--partitions", 2, "--dir", tmp_path / "run")
    pids = [int(pid) for pid in re.findall(r"process (\d+)", run.stdout.readline())]
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in output
    assert f"\nto go on: {sys.executable} {EXAMPLE / 'run.py'} --resume {tmp_path / 'run'}\n" in output
    assert len(pids) == 4  # a plain consumer too
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


# ---- the whole job


@pytest.mark.long
def test_a_farm_that_is_killed_in_the_middle_and_run_again_completes_the_job(tmp_path, run):
    """Killed while it streams: what it has published is not published again, and the stream goes on.

    With every tenth flight, for most of the time goes into four starts of Spark anyway.
    """
    folder, patience = tmp_path / "run", ("--timeout", 580)
    first = run("--partitions", 2, "--every", 10, *patience, "--dir", folder, "--out", tmp_path / "first")
    pid = int(re.search(r"JFK \(process (\d+)\)", first.stdout.readline()).group(1))
    until((folder / "stream-JFK" / "checkpoint" / "offsets" / "0").exists)
    os.kill(pid, signal.SIGKILL)
    second = run("--resume", folder, "--farm", "JFK", *patience, "--out", tmp_path / "second")
    output, again = (one.communicate(timeout=600)[0] for one in (first, second))
    assert "JFK was killed by signal 9" in output
    assert f"to run it again: {sys.executable} {EXAMPLE / 'run.py'} --resume {folder} --farm JFK\n" in output
    assert "checker-0 was killed by signal 9, as planned" in output
    for step in ("EWR: starting Spark", "EWR: 2 of 2 partitions counted"):
        assert step in output
    assert "failed" not in output
    assert [(folder / f"lag-{farm}").read_text() for farm in ("EWR", "LGA")] == ["0"] * 2
    assert (first.returncode, second.returncode) == (0, 0), output + again
    for said in (output, again):
        retried, plain, swept = map(int, SUMMARY.search(said).groups())
        assert plain == 6 + retried
        assert retried >= 3  # a partition of every farm is made to fail once
        assert swept > 0
    for chart in (tmp_path / "first" / "flights.png", tmp_path / "second" / "flights.png"):
        assert chart.read_bytes().startswith(b"\x89PNG")


def until(condition, timeout=580.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
