"""Every public constructor and verb, given what nobody means to give: only errors of ours come out, and say why.

An argument that is wrong by itself is refused before the store is asked. The message is one line, short, and prints;
the error pickles.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest

from latchwork.errors import BinMismatch, InvalidRequest, LatchworkError, RecordTooBig
from latchwork.plain import one_line
from tests.support.proof import FIRST, SCALE

from .hostile import MAKERS
from .public_api import PUBLIC, Of, Public, Waits, World

MIXES = 1500 * SCALE
"""Calls with several hostile arguments, by chance."""
LONGEST = 1_000
"""Characters of a message."""


def outcome(public: Public, hostile: dict[str, str], calls: Counter[str]) -> list[str]:
    """What is wrong with what a call with these hostile arguments comes to."""
    world = World()
    good = {name: value.get(world) if isinstance(value, Of) else value for name, value in public.good.items()}
    target = public.get(world)
    given = {**good, **{name: MAKERS[kind]() for name, kind in hostile.items()}}
    world.store.reset()
    calls["calls"] += 1
    try:
        made = target(**given)
        if hasattr(made, "__next__"):
            next(made, None)
        asked = 0
        public.then(world, made)
    except LatchworkError as failure:
        calls["refused"] += 1
        asked = world.store.total if not set(hostile) & set(public.asks_first) else 0
        return list(wrong_with(failure, asked))
    except Waits:
        return [] if public.waits else ["waits for ever"]
    except Exception as failure:
        where = failure.__traceback__
        while where.tb_next:
            where = where.tb_next
        frame = where.tb_frame
        return [f"{type(failure).__name__}: {str(failure)[:100]} ({frame.f_code.co_filename}:{where.tb_lineno})"]
    return []


def wrong_with(failure: LatchworkError, asked: int):
    """What is wrong with this error, after so many calls of the store."""
    text = str(failure)
    if len(text) > LONGEST:
        yield f"a message of {len(text)} characters: {text[:60]}"
    if one_line(text) != text:
        yield f"a message that does not print: {text[:200]!r}"
    if type(failure) is LatchworkError:
        yield f"an error without a narrower name: {text[:100]}"
    if asked and isinstance(failure, InvalidRequest) and not isinstance(failure, BinMismatch | RecordTooBig):
        yield f"the store was asked {asked} times first: {text[:100]}"
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception as trouble:
        yield f"the error does not pickle: {trouble}"


def told(public: Public, hostile: dict[str, Any], wrong: list[str]) -> list[str]:
    given = ", ".join(f"{name}={kind}" for name, kind in hostile.items())
    return [f"{public.name}({given}): {what}" for what in wrong]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Whoever makes a file makes it where it does no harm."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
def test_good_arguments_are_taken(public):
    assert outcome(public, {}, Counter()) == []


def test_every_hostile_value_in_every_argument_is_taken_or_refused_in_words(proved):
    calls: Counter[str] = Counter()
    wrong = [
        line
        for public in PUBLIC
        for name in public.good
        for kind in MAKERS
        for line in told(public, {name: kind}, outcome(public, {name: kind}, calls))
    ]
    proved("hostile arguments", "one at a time", **calls)
    assert wrong == []


def test_several_hostile_values_at_once_are_taken_or_refused_in_words(proved):
    random, calls, wrong = Random(FIRST), Counter(), []
    several = [public for public in PUBLIC if len(public.good) > 1]
    for _ in range(MIXES):
        public = random.choice(several)
        names = random.sample(sorted(public.good), random.randint(2, len(public.good)))
        hostile = {name: random.choice(list(MAKERS)) for name in names}
        wrong += told(public, hostile, outcome(public, hostile, calls))
    proved("hostile arguments", "several at once", **calls)
    assert wrong == []
