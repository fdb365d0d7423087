"""The checkers can fail: each seeded bug is caught."""

import re
from pathlib import Path

import pytest

from . import mutants
from .crashes import SHAPES, Violation, explore
from .promises import acknowledged_survive_a_failed_sync, copied_records_are_not_data, length_comes_last

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "paged-queue.md"
ALL = (
    *mutants.CAUGHT_BY_CRASHES, *mutants.CAUGHT_BY_FAILED_SYNCS, *mutants.CAUGHT_BY_THE_ORDER_OF_WRITES,
    mutants.checksum_without_place,
)  # fmt: skip


def test_each_rule_of_the_protocol_has_a_mutant():
    rules = re.findall(r"^\| (P22\.\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rules == [f"P22.{n}" for n in range(1, 15)]
    assert {mutant.__doc__ for mutant in ALL} == set(rules)


KNOWN = {
    "recovery_leaves_the_tail": (3, "larger than a page, unsynced"),
    "recovery_does_not_sync": (3, "left to the system"),
    "cursor_stored_before_the_messages": (2, "left to the system"),
    "page_deleted_before_read_meta": (0, "reclaimed"),
}
"""The seed and shape that catch a mutant, where it is not the first. Where they do not any more, all are tried."""


def explore_all(known):
    runs = [(seed, shape) for seed in range(8) for shape in SHAPES]
    for seed, shape in sorted(runs, key=lambda run: (run[0], run[1].name) != known):
        explore(shape, seed, actions=12, each_step=5)


@pytest.mark.parametrize("mutant", mutants.CAUGHT_BY_CRASHES, ids=lambda mutant: mutant.__name__)
def test_the_crash_checker_catches(mutant, monkeypatch, proved):
    mutant(monkeypatch)
    with pytest.raises(Violation):
        explore_all(KNOWN.get(mutant.__name__))
    proved("mutants", "paged queue", seeded=1, caught=1)


@pytest.mark.parametrize("mutant", mutants.CAUGHT_BY_FAILED_SYNCS, ids=lambda mutant: mutant.__name__)
def test_the_failed_sync_checker_catches(mutant, monkeypatch, proved):
    mutant(monkeypatch)
    with pytest.raises(Violation):
        acknowledged_survive_a_failed_sync()
    proved("mutants", "paged queue", seeded=1, caught=1)


@pytest.mark.parametrize("mutant", mutants.CAUGHT_BY_THE_ORDER_OF_WRITES, ids=lambda mutant: mutant.__name__)
def test_the_order_of_writes_catches(mutant, monkeypatch, proved):
    mutant(monkeypatch)
    with pytest.raises(Violation):
        length_comes_last()
    proved("mutants", "paged queue", seeded=1, caught=1)


def test_a_copied_record_catches_a_checksum_without_place(monkeypatch, proved):
    mutants.checksum_without_place(monkeypatch)
    with pytest.raises(Violation):
        copied_records_are_not_data()
    proved("mutants", "paged queue", seeded=1, caught=1)
