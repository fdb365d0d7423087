"""Who has done what, as `latchwork audit` reads it."""

from __future__ import annotations

import pytest

from latchwork.observe.audit import AUDIT, Deed, audit_of, audited
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock


@pytest.fixture
def store():
    """With two actions, one second apart."""
    clock = ManualClock()
    found = MemoryStore(clock)
    for target in ("shop/first", "shop/second"):
        with audited(found, Deed("local", "ann", "pause", target)):
            clock.advance(1)
    return found


def test_the_newest_action_is_the_first_and_each_has_its_time(store):
    newest, before = audit_of(store)
    assert [one.target for one in (newest, before)] == ["shop/second", "shop/first"]
    assert newest.at == before.at + 1
    assert [one.target for one in audit_of(store, 1)] == ["shop/second"]


@pytest.mark.parametrize(("name", "damage"), [("at", "yesterday"), ("who", 7)])
def test_an_action_whose_record_is_damaged_hides_no_other(store, name, damage):
    newest, _ = audit_of(store)
    store.operate(Key(AUDIT, newest.id), Put(name, damage))
    assert [one.target for one in audit_of(store)] == ["shop/first"]
