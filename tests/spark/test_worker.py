"""What the Python processes that Spark starts load, and keep."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from latchwork.spark import garbage_collection

UNNEEDED = {
    "a read": {"pyarrow.compute", "latchwork.spark.sink", "latchwork.spark.latch"},
    "a write": {"pyarrow.compute", "latchwork.spark.source", "latchwork.spark.latch", "latchwork.coord.barrier"},
}
"""What takes long to load, and a step of a query's planning has no use for."""
NEEDED = {"a read": "source, latchwork.spark.table", "a write": "sink"}


@pytest.fixture(scope="module")
def loaded():
    """What is loaded after each step, in a child of a process that has loaded what all steps need."""
    steps = "".join(
        f"if not os.fork():\n    import latchwork.spark.{modules}\n    print(*sys.modules)\n    sys.exit()\nos.wait()\n"
        for modules in NEEDED.values()
    )
    code = f"import os, sys, latchwork.spark.datasource\n{steps}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return dict(zip(NEEDED, (set(line.split()) for line in done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("what", NEEDED)
def test_a_process_that_plans_loads_only_what_its_step_needs(what, loaded):
    assert f"latchwork.spark.{NEEDED[what].rpartition('.')[2]}" in loaded[what]
    assert not loaded[what] & UNNEEDED[what]


@pytest.fixture
def unfrozen(monkeypatch):
    """As in a process in which nothing was read or written yet."""
    monkeypatch.setattr(garbage_collection, "_ready", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_a_worker_has_loaded_is_not_looked_at_after_each_task_again(unfrozen, monkeypatch):
    monkeypatch.setattr(garbage_collection.TaskContext, "get", staticmethod(object))
    garbage_collection.make_ready()
    loaded = gc.get_freeze_count()
    assert loaded > 1_000
    gc.unfreeze()
    garbage_collection.make_ready()
    assert gc.get_freeze_count() == 0, "once in a worker's life: what comes later is collected"


def test_a_process_that_is_no_worker_collects_garbage_as_before(unfrozen):
    garbage_collection.make_ready()
    assert gc.get_freeze_count() == 0
