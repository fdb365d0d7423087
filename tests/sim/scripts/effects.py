"""Effects that happen once (P23): marks that leave the bin while others look for them."""

from __future__ import annotations

from unittest import mock

from latchwork.coord.effects import marks
from latchwork.store import Add, Exists, Key, Update
from latchwork.store.model.expr import Const, If, MapValue, has

from ..stage import Stage
from .common import patched, rule

ACCOUNT = Key("sim", "account")
KEEP = 86_400


def _apply(store, *names):
    """Apply the effects of these names, each of which adds 1."""
    for name in names:
        update = Update(ACCOUNT, (Add("n", 1),), exists=Exists.ANY)
        marks.apply(store, update, marks.Effect(marks.token_of(name), "effects", KEEP))


def _names(prefix, count):
    return [f"{prefix}{number}" for number in range(count)]


def _played(script, *acts, room=6):
    """How often the record counts, once these have acted: each at its time."""
    stage = Stage(script)
    for name, after, body in acts:
        stage.act(name, body, after=after)
    with mock.patch.object(marks, "ROOM", room):
        stage.play()
    assert not [said for said in stage.said.values() if isinstance(said, Exception)], stage.said
    return stage.bins(ACCOUNT)["n"]


LATE = {"a": {"Add:n": [0.0] * 8 + [2.0]}}
"""The last update of seven and one, of which one was refused for want of room, is under way for two seconds."""


def moved_between_look_and_update():
    """P23.5: a process that knows the generation has just looked for its mark. Another one applies the effect, and
    others after it, so that the mark leaves the bin before the first one's update arrives.
    """
    count = _played(
        LATE,
        ("a", 0.0, lambda store: _apply(store, *_names("a", 7), "t")),
        ("b", 1.0, lambda store: _apply(store, "t", *_names("b", 10))),
    )
    return count == 18


def made_again_between_look_and_update():
    """P23.6: as before, but the record is deleted and made again, and its first marks have left it, the mark too."""

    def again(store):
        store.delete(ACCOUNT)
        _apply(store, "t", *_names("b", 6))

    count = _played(LATE, ("a", 0.0, lambda store: _apply(store, *_names("a", 7), "t")), ("b", 1.0, again))
    return count == 7


def looked_for_while_it_moves():
    """P23.4: a mark has left the bin, and its own record is made a second later."""
    script = {"a": {"E/": 1.0}}
    count = _played(
        script,
        ("a", 0.0, lambda store: _apply(store, "t", *_names("a", 7))),
        ("b", 0.5, lambda store: _apply(store, "t")),
    )
    return count == 8


def _next_number(bin):
    return If(has(bin, marks.GENERATION), MapValue(bin, Const(marks.GENERATION)) + 1, Const(1))


RULES = [
    ("P23.4 first its own record", looked_for_while_it_moves, rule("effects", "marks leave before they have a record")),
    (
        "P23.5 known before the look",
        moved_between_look_and_update,
        rule("effects", "the generation is that of after the look"),
    ),
    (
        "P23.6 generations only grow",
        made_again_between_look_and_update,
        patched(marks, "_next_generation", _next_number),
    ),
]
