"""Every public constructor and verb, given what nobody means to give: only errors of ours come out, and say why.

An argument that is wrong by itself is refused before the store is asked. The message is one line, short, and prints;
the error pickles.
"""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest

import latchwork
from latchwork import coord, observe, queue, spark, store, testing
from latchwork.errors import BinMismatch, InvalidRequest, LatchworkError, RecordTooBig
from latchwork.plain import MOST_SAID, one_line
from tests.support.scale import FIRST, scaled

from .hostile import MAKERS
from .public_api import PUBLIC, Of, Public, Waits, World, with_place

SINGLE, MIXES = scaled(3_000), scaled(800)
"""Calls with one hostile argument, of all that there are, and with several."""
GIVEN = {
    "BarrierProgress", "Batch", "Call", "Change", "ConsumerGroup", "Crash", "Decision", "Delivery", "EVENTS", "Entry",
    "Event", "Exists", "FAULTS", "GAUGES", "Grant", "Holder", "KEEP", "KINDS", "LastSweep", "LatchLevel",
    "LatchProgress", "Leadership", "Member", "Membership", "Message", "NEVER", "OutboxLag", "Outcome", "PagedEntry",
    "PassReport", "Permits", "QueueDepth", "QueueGroup", "QueueInfo", "ReadAll", "ReadGrant", "Reason", "Record",
    "RecordStore", "Report", "Sample", "ShardReport", "ShardedQueue", "SkewedClock", "StoreInfo", "SweepReport",
    "Telemetry", "Touch", "Transaction", "Trouble", "Update", "WriteGrant", "errors", "BatchProgress", "BatchResult",
    "OnceFunction", "OnceStep", "Rows", "State", "Status", "Step", "Minute", "Overview",
    "ScheduleState",
}  # fmt: skip
"""Public names of what is handed out, or has no arguments of its own: nobody makes it of what he was given."""
SPARK = {"acknowledge", "register", "sweep_on", "watch_streams"}
"""Those need a session of Spark."""
MORE = {("QueueRegistry.queues", "active", "None")} | {("SparkLatch.wait", "progress", kind) for kind in MAKERS}
"""Switches that may be something else as well."""
CALLED = {"progress", "work", "prepare", "recover", "check", "make_store", "action", "fn", "lead", "handler"}
"""Functions of the caller's: what one raises is his."""


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
        if any(callable(given[name]) for name in CALLED & set(hostile)):
            return []
        return [with_place(failure)]
    return []


def wrong_with(failure: LatchworkError, asked: int):
    """What is wrong with this error, after so many calls of the store."""
    text = str(failure)
    if len(text) > MOST_SAID:
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


@pytest.mark.matrix
@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
def test_good_arguments_are_taken(public):
    assert outcome(public, {}, Counter()) == []


def test_everything_public_is_tried():
    public = {name for module in (latchwork, coord, queue, spark, store, observe, testing) for name in module.__all__}
    tried = {part for one in PUBLIC for part in (one.name, one.name.partition(".")[0])}
    errors = {name for name in public if isinstance(getattr(latchwork, name, None), type) and name not in tried}
    assert (
        public - tried - GIVEN - SPARK - {name for name in errors if issubclass(getattr(latchwork, name), Exception)}
        == set()
    )


def test_every_hostile_value_in_every_argument_is_taken_or_refused_in_words(proved):
    calls: Counter[str] = Counter()
    every = [(public, {name: kind}) for public in PUBLIC for name in public.good for kind in MAKERS]
    some = Random(FIRST).sample(every, min(SINGLE, len(every)))
    wrong = [line for public, hostile in some for line in told(public, hostile, outcome(public, hostile, calls))]
    proved("hostile arguments", "one at a time", **calls)
    assert wrong == []


def test_a_switch_is_true_or_false():
    """A text such as "no" would turn it on."""
    taken = [
        f"{public.name}({name}={kind})"
        for public in PUBLIC
        for name, good in public.good.items()
        if isinstance(good, bool)
        for world in [World()]
        for kind, make in MAKERS.items()
        if (public.name, name, kind) not in MORE
        and not isinstance(make(), bool)
        and not is_refused(public, world, name, kind)
    ]
    assert taken == []


def is_refused(public: Public, world: World, name: str, kind: str) -> bool:
    given = {key: value.get(world) if isinstance(value, Of) else value for key, value in public.good.items()}
    try:
        made = public.get(world)(**{**given, name: MAKERS[kind]()})
        public.then(world, next(made, None) if hasattr(made, "__next__") else made)
    except InvalidRequest:
        return True
    return False


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
