"""The page about the command has every command with every option, and the page about operations every URL's options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from latchwork.store.aerospike.url import NUMBERS, OPTIONS
from latchwork.store.connect import SQLITE_OPTIONS

ROOT = Path(__file__).parents[1]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ENVIRONMENT = re.compile(r"\$?(LATCHWORK_[A-Z_]*[A-Z])")


@pytest.fixture(scope="module")
def command():
    return pytest.importorskip("tools.command")


@pytest.fixture(scope="module")
def page(command):
    return command.filled((ROOT / "docs" / command.PAGE).read_text())


def sections(page):
    """The text below each heading, by the heading."""
    parts = re.split(r"^#{1,3} (.*)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_its_section_with_every_argument_and_option(command, page):
    found, told = dict(command.commands()), sections(page)
    assert len(found) > 60, "the commands are found"
    for name, each in found.items():
        assert all(f"`{typed}" in told[name] for typed in typed_words(each)), name
        assert "```bash\nlatchwork " in told[name] or name == "demo", f"{name} has an example"
    assert "`--store TEXT`" in told["Global options"]
    assert "<!--" not in page, "each place is filled"


def typed_words(command):
    """The options of a command as they are typed, and its arguments as its usage names them."""
    for parameter in command.params:
        if parameter.name != "help" and not parameter.hidden:
            options = [name for name in parameter.opts if name.startswith("-")]
            yield from options or [parameter.metavar or parameter.name.upper()]


def test_defaults_and_limits_are_those_of_the_code(page):
    told = sections(page)
    assert "| `--shards INTEGER` | `32` |" in told["queue create"]
    assert "| `-n INTEGER`, `--max INTEGER` | `1` |" in told["large dequeue"]
    assert "| `--timeout NUMBER` | no limit | seconds |" in told["queue batch wait"]
    assert "0 to 65,535 |" in told["worker"]
    assert "`$LATCHWORK_CLIENT`, else required" in told["latch wait"]


def test_every_exit_code_and_every_variable_is_on_the_page(page):
    folders = (ROOT / "src" / name for name in ("cli", "console"))
    code = "".join(path.read_text() for folder in folders for path in sorted(folder.rglob("*.py")))
    used = {name for name in ENVIRONMENT.findall(code) if name != "LATCHWORK"}
    assert len(used) > 8, "the variables are found"
    assert {name for name in used if f"`{name}`" not in page} == set()
    codes = sections(page)["Exit codes"]
    assert [code for code in ("0", "1", "2", "3", "4", "126, 127", "130") if f"| {code} |" not in codes] == []


@pytest.mark.parametrize(("section", "options"), [("an Aerospike", OPTIONS), ("a SQLite", SQLITE_OPTIONS)])
def test_every_option_of_a_stores_url_is_in_its_table(section, options):
    table = OPERATIONS.split(f"## The URL of {section} store\n")[1].split("\n## ")[0]
    first_cells = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert sorted(re.findall(r"`(\w+)`", first_cells)) == sorted(options)


def test_the_numbers_of_an_aerospike_url_have_the_defaults_of_the_code():
    times = [NUMBERS[name] for name in ("socket_timeout", "total_timeout", "connect_timeout")]
    assert f"| {', '.join(map(str, times))} |" in OPERATIONS
    assert f"| `connections` | {NUMBERS['connections']} |" in OPERATIONS
