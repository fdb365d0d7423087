"""Imports point down: no layer of the source imports one above it, and nothing imports itself through others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.shape import circles_of, closure_of, folder_circles_of, imports_of

SRC = Path(__file__).parents[1] / "src"
LAYERS = ("store", "coord", "queue", "testing, observe, aio", "spark, asgi, django, airflow", "cli", "console")
"""From the bottom up; layers that stand side by side do not import each other. The modules of the package itself
(errors, retry, seams) are below all of them. What `latchwork` itself offers is above: `__init__`, `__main__`."""
ABOVE = {SRC / "__init__.py", SRC / "__main__.py"}


@pytest.fixture(scope="module")
def imports():
    """The files of the source that each of them imports."""
    return {path: imports_of(path, SRC) for path in sorted(SRC.rglob("*.py"))}


def layer_of(path):
    """The place of a file's layer, and its name."""
    folder = path.relative_to(SRC).parts[0]
    if path.parent == SRC:
        return len(LAYERS) if path in ABOVE else -1, "the package itself"
    return next(place for place, names in enumerate(LAYERS) if folder in names.split(", ")), folder


def upwards(imports):
    """Each import of a layer that stands above the importing one, or beside it."""
    pairs = ((path, target) for path, targets in imports.items() for target in targets)
    return [
        f"{path.relative_to(SRC)} imports {target.relative_to(SRC)}"
        for path, target in pairs
        if layer_of(path) != layer_of(target) and layer_of(path)[0] <= layer_of(target)[0]
    ]


def test_no_layer_imports_one_above_it_or_beside_it(imports):
    assert sum(map(len, imports.values())) > 500, "the imports are found"
    assert upwards(imports) == []


def test_every_folder_of_the_source_is_in_a_layer():
    folders = {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}
    assert folders == {name for names in LAYERS for name in names.split(", ")}


@pytest.mark.parametrize("wrong", [("store/port.py", "coord/lock.py"), ("observe/events.py", "testing/clock.py")])
def test_an_import_that_points_up_or_to_the_side_is_noticed(imports, wrong):
    one, other = (SRC / name for name in wrong)
    assert upwards(imports | {one: imports[one] | {other}}) == [f"{wrong[0]} imports {wrong[1]}"]


def test_the_way_of_a_message_knows_no_feature_that_takes_part_in_it(imports):
    sharded = SRC / "queue/sharded"
    way = closure_of(sharded / "subqueue.py", imports)
    assert {sharded / "delivery.py", sharded / "shards.py", sharded / "transfer.py"} <= way
    features = {path.relative_to(sharded).parts[0] for path in way if path.is_relative_to(sharded)}
    above = {"sweep_record.py", "parts.py", "queue.py", "group.py"}
    assert features.isdisjoint({"groups", "batches", "ledger", "delayed", "publishing", *above})


def test_no_file_imports_itself_through_others(imports):
    assert circles_of(imports) == []
    some = next(path for path in imports if imports[path])
    first = next(iter(imports[some]))
    assert circles_of(imports | {first: imports[first] | {some}}) != [], "the check sees what it looks for"


def test_no_folder_imports_itself_through_others(imports):
    assert folder_circles_of(imports) == []
    latch, presence = (SRC / "coord" / name / "layout.py" for name in ("latch", "presence"))
    wrong = imports | {presence: imports[presence] | {latch}}
    assert circles_of(wrong) == [], "the files make no circle"
    assert [len(circle) for circle in folder_circles_of(wrong)] == [2], "their folders make one"
