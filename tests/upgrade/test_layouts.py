"""What is stored is as it was, or says by its version that it is not."""

from __future__ import annotations

import copy
import json

import pytest

from . import layouts

RECORDED = json.loads(layouts.FILE.read_text())


def test_what_is_stored_has_the_layout_that_is_recorded(tmp_path):
    found = layouts.now(tmp_path)
    assert len(found["layouts"]) > 50, "there is one of everything"
    gone, new = layouts.differences(RECORDED["layouts"], found["layouts"])
    assert (gone, new) == ([], []), (
        "the layout of what is stored has changed. Older versions work on the same store (docs/upgrades.md): what they "
        "read must stay. Where they may ignore what is new, run `python -m tests.upgrade.layouts`; else raise the "
        "layout's version first, and go on reading the one before"
    )


@pytest.mark.parametrize("name", ["c_data_set q_SHARD_#_#", "latchwork_locks lock"])
def test_a_bin_that_has_gone_or_changed_is_not_recorded_under_the_same_version(name):
    without, other, more = (copy.deepcopy(RECORDED) for _ in range(3))
    bin = "data" if "v" in without["layouts"][name] else "fencing-ctr"
    del without["layouts"][name][bin]
    other["layouts"][name][bin] = ["bytes"]
    more["layouts"][name]["another"] = ["int"]
    kind = RECORDED["layouts"][name][bin][0]
    assert layouts.unreadable(RECORDED, without) == layouts.unreadable(RECORDED, other) == [f"{name}, {bin}: {kind}"]
    assert layouts.unreadable(RECORDED, more) == []


def test_a_layout_may_change_with_its_version_and_one_without_with_the_packages():
    raised, package = copy.deepcopy(RECORDED), copy.deepcopy(RECORDED)
    raised["layouts"]["c_data_set q_SHARD_#_#"] = {"v": ["version 2"]}
    assert layouts.unreadable(RECORDED, raised) == []
    package["of"] = "9.0.0"
    package["layouts"]["latchwork_locks lock"] = {}
    assert layouts.unreadable(RECORDED, package) == []
    package["layouts"]["c_data_set q_SHARD_#_#"] = {"v": ["version 1"]}
    assert layouts.unreadable(RECORDED, package) != [], "its version says that it is as it was"
