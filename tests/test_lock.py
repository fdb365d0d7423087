"""The lock of the development environment fits pyproject.toml, pins everything, and names no place of a machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.pythons import claimed

tomllib = pytest.importorskip("tomllib")  # of Python 3.11

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements-dev.lock").read_text()
PINS = [Requirement(line) for line in re.findall(r"^([a-z0-9][^\\\n]+)", LOCK, re.MULTILINE)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = (*claimed(), "3.14")
"""Those that are claimed, and the next one."""


def asked(python):
    """What pyproject.toml asks for on a Python, with all extras but `airflow`, which has an environment of its own."""
    extras = [lines for extra, lines in PROJECT["optional-dependencies"].items() if extra != "airflow"]
    found = [Requirement(line) for line in sum(extras, PROJECT["dependencies"])]
    return [each for each in found if not each.marker or each.marker.evaluate({"python_version": python})]


def pinned(name, python):
    """The versions that the lock has for a Python on Linux."""
    found = {"python_full_version": f"{python}.9", "python_version": python, "sys_platform": "linux"}
    pins = [pin for pin in PINS if pin.name == name.lower() and (not pin.marker or pin.marker.evaluate(found))]
    return [str(pin.specifier).removeprefix("==") for pin in pins]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_package_has_one_version_that_pyproject_allows(python):
    assert len(asked(python)) > 20, "the packages are found"
    wrong = {
        str(each): versions
        for each in asked(python)
        if len(versions := pinned(each.name, python)) != 1 or not each.specifier.contains(versions[0])
    }
    assert wrong == {}, "run make lock"


def test_every_version_is_exact_and_has_its_hashes():
    assert len(PINS) > 100, "the pins are found"
    assert [str(pin) for pin in PINS if not re.fullmatch(r"==[^,*]+", str(pin.specifier))] == []
    blocks = re.split(r"\n(?=\S)", LOCK.partition("make lock\n")[2])
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


def test_the_lock_names_no_place():
    assert re.findall(r"https?:|file:|index|find-links|/\w+/", LOCK) == []
