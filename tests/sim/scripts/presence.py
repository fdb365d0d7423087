"""Presence (P9)."""

from __future__ import annotations

from latchwork.coord import Group
from latchwork.coord.presence import presence
from latchwork.errors import FencedOut
from latchwork.store import Add
from latchwork.store.model.expr import Const

from ..coord_mutants import _bins, _joining
from ..stage import Fault, Kind, Stage
from .common import KEY, patched, rule


def names(store):
    return [one.member for one in Group(store, "g").members()]


def heard_of_between_look_and_taking_out():
    """P9.4: a watcher has seen a member stand still for its lease; then it is heard of; then it is taken out."""
    stage = Stage()

    def both(store):
        group = Group(store, "g")
        membership = group.join("p", lease=1.0, keep_alive=False)
        (one,) = group.members()
        membership.renew()
        group.watcher()._remove(one)
        return names(store)

    stage.act("a", both)
    return stage.play().said["a"] == ["p"]


def joining_that_is_late():
    """P9.2: a joining arrives when the one that was started instead is there already, and has left again."""
    stage = Stage({"a": {2: Fault(Kind.LATE, 3.0), 3: Fault(Kind.CRASH_BEFORE)}})
    stage.act("a", lambda store: Group(store, "g").join("p", lease=1.0))

    def second(store):
        membership = Group(store, "g").join("p", lease=60.0, keep_alive=False)
        store.seams.sleep(5)
        membership.renew()
        return "still there"

    stage.act("b", second, after=0.5)
    return stage.play().said["b"] == "still there"


def back_from_a_pause():
    """P9.3: a member is stopped, counts as lost, and its heartbeat goes out when it comes back."""
    stage = Stage({"a": {3: 5.0}})

    def paused(store):
        membership = Group(store, "g").join("p", lease=1.0, keep_alive=False)
        try:
            membership.renew()
        except FencedOut:
            return "refused"

    def watcher(store):
        return ([change.kind for change in Group(store, "g").watch(4)], names(store))

    stage.act("a", paused)
    stage.act("b", watcher, after=0.1)
    said = stage.play().said
    return (said["a"], said["b"]) == ("refused", (["joined", "lost"], []))


def former_member_writes():
    """P9.3: a member is started again elsewhere; the former one writes to what the member alone writes to."""
    stage = Stage({"a": {3: 3.0}})

    def former(store):
        membership = Group(store, "g").join("p", lease=60.0, keep_alive=False)
        try:
            membership.operate(KEY, Add("n", 1))
        except FencedOut:
            return "refused"

    stage.act("a", former)
    stage.act("b", lambda store: Group(store, "g").join("p", keep_alive=False).operate(KEY, Add("n", 1)), after=1.0)
    return stage.play().said["a"] == "refused"


RULES = [
    ("P9.4 guard", heard_of_between_look_and_taking_out, rule("presence", "called dead though it was heard of")),
    ("P9.2 joining", joining_that_is_late, _bins(join=_joining(lambda bins: Const(True)))),
    ("P9.4 taken out", back_from_a_pause, patched(presence.Watcher, "_remove", lambda self, one: True)),
    ("P9.3 fence", former_member_writes, rule("lock", "a ratchet without the guard")),
]
