"""What the command loads before it does anything: modules are counted, as times differ from machine to machine."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import types

import pytest

from latchwork.cli.app import COMMANDS, loaded
from latchwork.cli.missing_packages import without_extra

from .commands import leaves

PROGRAM = """
import sys
before = set(sys.modules)
{0}
print(*sorted(set(sys.modules) - before))
"""
HEAVY = {"aerospike", "kazoo", "msgspec", "platformdirs", "pyspark", "rich", "sqlite3", "tenacity"}


def modules_of(program: str, *words: str) -> set[str]:
    """What a new interpreter loads for this program."""
    run = [sys.executable, "-c", PROGRAM.format(program), *words]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


COMMAND = """
from latchwork.cli import main
try:
    main(sys.argv[1:])
except SystemExit as done:
    assert done.code in (0, None), done.code
"""


@pytest.mark.parametrize("words", [("--help",), ("--version",)])
def test_help_loads_no_store_no_primitive_and_no_tables(words):
    found = modules_of(COMMAND, *words)
    assert {name for name in found if name.partition(".")[0] in HEAVY} == set()
    ours = {name.split(".")[1] for name in found if name.startswith("latchwork.")}
    assert not ours & {"coord", "observe", "queue", "spark", "store"}
    assert "latchwork.cli.session" not in found
    assert len(found) <= 230


def test_the_command_of_a_lock_loads_no_queue_and_no_table():
    found = modules_of(COMMAND, "--store", "memory:", "lock", "run", "n", "--", "true")
    assert {name for name in found if name.startswith(("latchwork.queue", "latchwork.observe", "rich."))} == set()


def test_of_a_group_of_commands_only_the_one_that_is_called_is_made():
    called = {tuple(words[:2]) for words, _ in leaves() if len(words) > 1}
    assert len(called) > 50, "the commands are found"
    assert {words for words in called if list(loaded(*words).commands) != [words[1]]} == set()


@pytest.mark.parametrize("module", ["latchwork", "latchwork.cli"])
def test_python_runs_the_command_by_the_name_of_the_package(module):
    run = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("latchwork ")


@pytest.mark.parametrize("package", ["queue", "coord"])
def test_a_package_loads_nothing_before_one_of_its_names_is_used(package):
    found = modules_of(f"import latchwork.{package}")
    assert {name for name in found if name.startswith("latchwork.")} == {
        f"latchwork.{package}", "latchwork.errors", "latchwork.lazy", "latchwork.plain", "latchwork.version",
    }  # fmt: skip
    assert len(found) <= 40, "with what Python itself needs for them"


def test_queues_load_neither_zookeeper_nor_the_command():
    found = modules_of("from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Worker")
    assert {
        name for name in found if name.partition(".")[0] in {"aerospike", "kazoo", "pyspark", "rich", "typer"}
    } == set()


def test_the_first_sentence_of_a_command_fits_into_the_list_of_commands():
    found = {" ".join(words): (one.help or "").partition("\n\n")[0] for words, one in leaves() if len(words) > 1}
    assert len(found) > 50, "the commands are found"
    first = {words: text.replace("\n", " ").partition(". ")[0] for words, text in found.items()}
    assert {words: line for words, line in first.items() if len(line) > 62} == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_among_the_others_what_it_is_for(name):
    line, command = COMMANDS[name].help, loaded(name)
    assert len(line) <= 62, "it fits into a line of a terminal"
    if hasattr(command, "commands"):
        assert command.help == line
    assert command.name == name


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        (None, "pip install 'latchwork[cli]'"),
        (
            {"url": "file:///a%20b/latchwork-1.0-py3-none-any.whl"},
            "pip install '/a b/latchwork-1.0-py3-none-any.whl[cli]'",
        ),
        ({"url": "file:///src/clone", "dir_info": {"editable": True}}, "pip install '/src/clone[cli]'"),
    ],
    ids=["by-name", "wheel", "clone"],
)
def test_a_command_without_its_extra_says_how_to_install_it_from_where_the_library_came(monkeypatch, origin, remedy):
    installed = types.SimpleNamespace(read_text=lambda _: origin and json.dumps(origin))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: installed)
    with pytest.raises(SystemExit) as ended:
        without_extra(ModuleNotFoundError("no typer", name="typer"))
    assert ended.value.code == f"latchwork: typer is not installed; install the extra: {remedy}"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ModuleNotFoundError(name="starlette.routing"), "starlette.routing is not installed; install the extra: {}"),
        (ImportError(name="uvicorn"), "uvicorn is of another version than needed; install the extra: {}"),
    ],
)
def test_a_module_that_the_console_needs_is_one_of_its_extra(monkeypatch, failure, said):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: types.SimpleNamespace(read_text=lambda _: None))
    with pytest.raises(SystemExit) as ended:
        without_extra(failure)
    assert ended.value.code == "latchwork: " + said.format("pip install 'latchwork[console]'")
