"""Latches, barriers, locks, elections and semaphores of a store, as tables: who has them, who is missing, who died.

A store does not keep a list of them, so each table reads whole sets: for people.
"""

from __future__ import annotations

from typing import NamedTuple

from ...coord.barrier.layout import BARRIERS, BarrierState
from ...coord.election.candidates import CONTENDERS
from ...coord.latch.layout import COUNT, SET_SUFFIX, bins_of, in_order, names_in
from ...coord.presence.layout import GROUPS, Seen
from ...errors import Corrupt, Unreadable
from ...inputs import is_int
from ...observe.findings import PROBLEM
from ...observe.snapshot import alive, election_now
from ...store import RecordStore
from ...store.port import Record
from ..coord.elections import stepped_down_by
from ..coord.lock import facts_of, locks_in
from ..coord.records import time_of
from ..coord.state import State, states_in
from .table import BAD, PLAIN, WARN, Column, Row, Table, age, row, timed

LATCHES = f"D_LTCH#{SET_SUFFIX}"
"""The set of latches that were made without a `set_suffix` of their own."""
SHOWN = 5
"""Names of parties that a cell has at most."""


def latches(store: RecordStore) -> Table:
    """Return latches, barriers and groups: which parties are missing, and whether these are dead or alive."""
    groups = store.scan(GROUPS)
    now = time_of(store, groups[0].key) if groups else 0
    lives = _lives(groups, now)
    rows = [
        *(_latch(record, lives) for record in store.scan(LATCHES)),
        *(_barrier(record, lives) for record in store.scan(BARRIERS)),
    ]
    for state in states_in(store, "group"):
        dead = "; ".join(finding.what for finding in state.findings) or "nobody"
        place = state.kind, state.name
        rows.append(row(place, (*place, dead, state.standing), _style(state)))
    columns = (
        Column("kind", right=False), Column("name", right=False), Column("missing", right=False),
        Column("stands", 1, right=False),
    )  # fmt: skip
    return Table(columns, tuple(rows), empty="no latch, barrier or group")


def locks(store: RecordStore) -> Table:
    """Return the locks and the read-write locks, and who has them."""
    records = locks_in(store)
    now = time_of(store, records[0].key) if records else 0
    rows = [_lock(record, now) for record in sorted(records, key=lambda one: str(one.key.name))]
    rows += [_other(state) for state in states_in(store, "rwlock")]
    columns = (
        Column("kind", 3, right=False), Column("name", right=False), Column("held by", right=False), Column("fence", 4),
        Column("renewed", 1), Column("lease", 2),
    )  # fmt: skip
    return Table(columns, tuple(rows), empty="no lock")


def elections(store: RecordStore) -> Table:
    """Return the elections by lease: who leads, and who would."""
    rows = []
    for name in sorted(str(record.key.name) for record in store.scan(CONTENDERS)):
        try:
            leader, names = election_now(store, name)
        except (Corrupt, Unreadable) as failure:
            rows.append(row(("election", name), (name, f"DAMAGED: {failure}", None, None, None), BAD))
            continue
        others = len(alive(names, leader))
        by = stepped_down_by(leader)
        leads = leader is not None and leader.leads and by is None
        style = PLAIN if leads else WARN if others else BAD
        who = leader.name if leads and leader else f"nobody ({leader.name} led last)" if leader else "nobody yet"
        if by is not None:
            who = f"nobody: {by} made the leader step down"
        ago = timed(leader.renewed_ago if leader else None)
        epoch = (str(leader.epoch), leader.epoch) if leader else None
        rows.append(row(("election", name), (name, who, epoch, ago, others), style))
    columns = Column("election", right=False), Column("leader", right=False), Column("epoch", 3), Column("renewed", 1)
    return Table((*columns, Column("candidates", 2)), tuple(rows), empty="no election")


def semaphores(store: RecordStore) -> Table:
    """Return the semaphores and the rate limiters."""
    states = [state for kind in ("semaphore", "limiter") for state in states_in(store, kind)]
    columns = Column("kind", 2, right=False), Column("name", right=False), Column("stands", right=False)
    rows = tuple(_other(state, columns=4) for state in states)
    return Table((*columns, Column("wrong", 1, right=False)), rows, empty="no semaphore or rate limiter")


# ---- one function for each kind of row


class Parties(NamedTuple):
    """The parties that a farm's counter of a latch was created with, and those of them that have not counted."""

    named: frozenset[str | int]
    missing: frozenset[str | int]


def parties_in(record: Record) -> dict[str, Parties]:
    """Return the parties of each farm of a latch, in the order of the farms: none where only their number is known.
    Raises `Corrupt`.
    """
    found = {}
    for farm in sorted(bin.removeprefix(COUNT) for bin in record.bins if bin.startswith(COUNT)):
        named = frozenset(names_in(record.bins, farm, record.key) or ())
        done = record.bins.get(bins_of(farm).done)
        found[farm] = Parties(named, named.difference(done if isinstance(done, dict) else ()))
    return found


def _latch(record: Record, lives: dict[str, str]) -> Row:
    name = str(record.key.name).removeprefix("D_LTCH#").replace("#", "/", 1)
    counts = {bin.removeprefix(COUNT): n for bin, n in record.bins.items() if bin.startswith(COUNT)}
    if not all(map(is_int, counts.values())):
        return row(("latch", name), ("latch", name, "DAMAGED: a counter is no number", None), BAD)
    left = sum(counts.values())
    try:
        missing = [str(party) for farm in parties_in(record).values() for party in in_order(farm.missing)]
    except Corrupt:
        return row(("latch", name), ("latch", name, "DAMAGED: the names of its parties", None), BAD)
    who = _named(missing, lives) if missing else f"{left} of unnamed parties" if left > 0 else "nobody: released"
    died = any(lives.get(one, "").startswith("DEAD") for one in missing)
    stands = ", ".join(f"{farm}: {n}" for farm, n in sorted(counts.items())) + " to go"
    return row(("latch", name), ("latch", name, who, stands), BAD if died else PLAIN)


def _barrier(record: Record, lives: dict[str, str]) -> Row:
    name = str(record.key.name).replace("#", "/", 1)
    try:
        homes = [bin.removeprefix("turn#") for bin in record.bins if bin.startswith("turn#")]
        found = BarrierState.of(record.key, record.bins, min(homes, default=""))
    except (Corrupt, ValueError, TypeError, AttributeError) as failure:
        return row(("barrier", name), ("barrier", name, f"DAMAGED: {failure}", None), BAD)
    here = sorted(party for (_, party), turn in found.at.items() if turn == found.turn)
    missing = sorted(party for (_, party), turn in found.at.items() if turn != found.turn)
    died = any(lives.get(one, "").startswith("DEAD") for one in missing)
    who = _named(missing, lives) if missing else "nobody that was ever here"
    last = found.ends.get(max(found.ends, default=0))
    stands = f"here: {len(here)}" + (f"; the last meeting: {last.kind}" if last else "")
    return row(("barrier", name), ("barrier", name, who, stands), BAD if died else PLAIN)


def _lock(record: Record, now: int) -> Row:
    name = str(record.key.name)
    try:
        facts = facts_of(record, now)
    except Corrupt as failure:
        return row(("lock", name), ("lock", name, f"DAMAGED: {failure}", None, None, None), BAD)
    fence = str(facts["fence"]), facts["fence"]
    if not facts["held"]:
        return row(("lock", name), ("lock", name, "free", fence, None, None))
    died = facts["ran_out"] and facts["broken_by"] is None  # a lock that was broken has no holder that could
    who = f"{facts['owner']}{', DEAD or paused' if died else ''}"
    times = timed(facts["renewed_s_ago"]), timed(facts["lease"])
    return row(("lock", name), ("lock", name, who, fence, *times), WARN if facts["ran_out"] else PLAIN)


def _other(state: State, columns: int = 6) -> Row:
    wrong = "; ".join(finding.what for finding in state.findings)
    if columns == 4:
        return row((state.kind, state.name), (state.kind, state.name, state.standing, wrong), _style(state))
    who = f"{state.standing}{f': {wrong}' if wrong else ''}"
    return row((state.kind, state.name), (state.kind, state.name, who, None, None, None), _style(state))


def _style(state: State) -> str:
    return BAD if any(one.state == PROBLEM for one in state.findings) else WARN if state.findings else PLAIN


def _lives(groups: list[Record], now: int) -> dict[str, str]:
    """Return, for each name that a group knows, whether a member of that name is alive."""
    found: dict[str, str] = {}
    for record in groups:
        try:
            seen = Seen.of(record.key, record.bins)
        except Corrupt:
            continue
        for (_, name), member in seen.members.items():
            ago = now / 1000 - member.seen
            found[name] = "alive" if ago <= member.lease else f"DEAD for {age(ago)}"
        for _, name in seen.lost:
            found.setdefault(name, "DEAD")
    return found


def _named(parties: list[str], lives: dict[str, str]) -> str:
    """Return the names of parties, the dead ones first, each with its state if a group knows it."""
    first = sorted(parties, key=lambda one: not lives.get(one, "").startswith("DEAD"))
    shown = [f"{one} ({lives[one]})" if one in lives else one for one in first[:SHOWN]]
    return ", ".join(shown) + (f" and {len(parties) - SHOWN} more" if len(first) > SHOWN else "")
