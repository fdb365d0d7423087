"""The state of groups, semaphores, read-write locks, barriers and limiters: for `latchwork doctor` and `stats`.

They are asked for by name, since a store does not list its records. Ages are by the server's clock: a holder that has
not renewed for its lease is dead for all that wait for its place, or is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ...coord.barrier.layout import BARRIERS, MET, BarrierState, barrier_key
from ...coord.holders import HolderEntry, Holders
from ...coord.limiter import CELLS, LIMITS
from ...coord.presence.layout import GROUPS, Seen
from ...coord.rwlock import ABANDONED, RWLOCKS, Mode
from ...coord.semaphore import PERMITS, SEMAPHORES
from ...errors import Corrupt, InvalidRequest, LatchworkError
from ...observe.findings import OK, PROBLEM, WARNING, Finding
from ...plain import counted, shown
from ...store import Key, Record, RecordStore
from ..similar import meant_in
from .elections import Office, office_of, successor
from .records import cleared_by, died, time_of

Groups = Annotated[list[str] | None, typer.Option("--group", help="a group to look at; repeat for each")]
Semaphores = Annotated[list[str] | None, typer.Option("--semaphore", help="a semaphore to look at")]
RWLocks = Annotated[list[str] | None, typer.Option("--rwlock", help="a read-write lock to look at")]
Barriers = Annotated[list[str] | None, typer.Option("--barrier", help="a barrier of the client to look at")]
Limiters = Annotated[list[str] | None, typer.Option("--limiter", help="a rate limiter to look at")]


@dataclass(frozen=True, slots=True)
class AskedNames:
    """The names that were asked for. names: of each kind, a key of `LOOKS`. farms: the stores of the elections."""

    client: str | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    elections: Sequence[str] = ()
    farms: Mapping[str, RecordStore] = field(default_factory=dict)

    @classmethod
    def of(
        cls, client: str | None, election: list[str] | None, farms: Mapping[str, RecordStore], **names: list[str] | None
    ) -> AskedNames:
        """Return the names of options, of which some were not given.

        Raises `InvalidRequest` for a barrier without client, and for an election without farms.
        """
        if names.get("barrier") and client is None:
            raise InvalidRequest("--barrier: a barrier belongs to a client, so give --client too")
        if election and not farms:
            raise InvalidRequest("--election: the election is over all farms, so give --farm-store for each farm too")
        return cls(client, {kind: given or () for kind, given in names.items()}, election or (), farms)


@dataclass(frozen=True, slots=True)
class State:
    """A named thing at one moment: how it stands, in a few words, and the findings about it."""

    kind: str
    name: str
    standing: str
    findings: tuple[Finding, ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """The state as a row of `stats`."""
        wrong = [finding.what for finding in self.findings]
        return {"kind": self.kind, "name": self.name, "standing": self.standing, "wrong": "; ".join(wrong) or None}


def findings(store: RecordStore, wanted: AskedNames) -> Iterator[Finding]:
    """Yield the findings about each named thing; if there are none, a line that says how it stands."""
    for state in states(store, wanted):
        for finding in state.findings:
            yield Finding(finding.state, f"{state.kind} {state.name}: {finding.what}", finding.remedy)
        if not state.findings:
            yield Finding(OK, f"{state.kind} {state.name}: {state.standing}")


def states(store: RecordStore, wanted: AskedNames) -> Iterator[State]:
    """Yield the state of each of them. Two calls each; of an election over all farms as many as there are, and one."""
    for kind, (set_name, _) in LOOKS.items():
        for name in wanted.names.get(kind, ()):
            key = barrier_key(str(wanted.client), name) if kind == "barrier" else Key(set_name, name)
            yield _state(store, kind, name, key)
    for name in wanted.elections:
        yield election_state(name, office_of(wanted.farms, name))


Look = Callable[[Record, int], tuple[str, list[Finding]]]
"""The findings about a record at a time (ms, server)."""


_DELETE = "delete the record while nobody uses it"


def states_in(store: RecordStore, kind: str) -> list[State]:
    """Return the state of all of a kind that this store has, by name: a key of `LOOKS`. It reads the whole set: for
    people. Two calls. Raises `InvalidRequest` on a store that cannot list its records.
    """
    records = store.scan(LOOKS[kind][0])
    now = time_of(store, records[0].key) if records else 0
    return sorted((_state_of(kind, str(one.key.name), one, now) for one in records), key=lambda state: state.name)


def _state(store: RecordStore, kind: str, name: str, key: Key) -> State:
    record = store.get(key)
    if record is None:
        why = f"it was never used, or has expired, or the name is wrong{meant_in(store, key)}"
        missing = Finding(WARNING, "there is none", why)
        return State(kind, name, "none", (missing,))
    try:
        now = time_of(store, key)
    except LatchworkError as failure:
        return State(kind, name, "unknown", (Finding(PROBLEM, str(failure), "look again"),))
    return _state_of(kind, name, record, now)


def _state_of(kind: str, name: str, record: Record, now: int) -> State:
    try:
        standing, found = LOOKS[kind][1](record, now)
    except Corrupt as failure:
        return State(kind, name, "damaged", (Finding(PROBLEM, str(failure), _DELETE),))
    except (AttributeError, TypeError, ValueError):
        what = f"the record {record.key} holds values of other types than its writer leaves"
        return State(kind, name, "damaged", (Finding(PROBLEM, what, _DELETE),))
    return State(kind, name, standing, tuple(found))


# ---- one function for each primitive


def _group(record: Record, now: int) -> tuple[str, list[Finding]]:
    seen = Seen.of(record.key, record.bins)
    silent = [one for one in seen.members.values() if now / 1000 - one.seen > one.lease]
    found = [
        Finding(
            PROBLEM,
            f"{one.farm}/{one.member} has not renewed for {now / 1000 - one.seen:.0f} s, its lease is {one.lease:g} s",
            "it died, or is paused: waits with alive= end; start it again under its name",
        )
        for one in sorted(silent, key=lambda member: (member.farm, member.member))
    ]
    if seen.lost:
        names = ", ".join(f"{farm}/{member}" for farm, member in sorted(seen.lost))
        found.append(Finding(PROBLEM, f"{names} died", "start it again: it is lost until it joins again by its name"))
    return counted(len(seen.members), "member"), found


def _semaphore(record: Record, now: int) -> tuple[str, list[Finding]]:
    entries, size = Holders.of(record.key, record.bins).entries.values(), record.bins.get(PERMITS)
    held = sum(len(entry.held) for entry in entries)
    found = [
        Finding(
            WARNING,
            f"{entry.owner} has {len(entry.held)} of {size} permits, {_silence(entry, now)}",
            "the next party that acquires takes its place, one lease after its first read; "
            "start the process that died again",
        )
        for entry in entries
        if _is_dead(entry, now)
    ]
    if isinstance(size, int) and held > size:
        what = f"{held} permits are held and there are {size}: it was made smaller"
        found.append(Finding(OK, what, "no acquisition succeeds until enough are released"))
    return f"{held} of {size} held", found


def _rwlock(record: Record, now: int) -> tuple[str, list[Finding]]:
    found = []
    entries = list(Holders.of(record.key, record.bins).entries.values())
    for entry in (entry for entry in entries if _is_dead(entry, now)):
        writes = entry.held == Mode.WRITE.value
        found.append(Finding(
            PROBLEM if writes else WARNING,
            f"{entry.owner} has it to {entry.held}, {_silence(entry, now)}",
            f"its changes may be incomplete: {cleared_by(record, entry.fence)}"
            if writes
            else "the next writer takes its place, one lease after its first read",
        ))  # fmt: skip
    abandoned = record.bins.get(ABANDONED)
    if abandoned is not None:
        found.append(Finding(
            PROBLEM,
            died(abandoned),
            cleared_by(record, abandoned),
        ))  # fmt: skip
    modes = [entry.held for entry in entries]
    return f"{modes.count('read')} read, {modes.count('write')} write", found


def _is_dead(entry: HolderEntry, now: int) -> bool:
    """Whether it has not renewed for its whole lease, by the server's clock."""
    return now - entry.stamp > entry.lease * 1000


def _silence(entry: HolderEntry, now: int) -> str:
    return f"and has not renewed for {(now - entry.stamp) / 1000:.0f} s; its lease is {entry.lease:g} s"


def _barrier(record: Record, now: int) -> tuple[str, list[Finding]]:
    homes = [bin.removeprefix("turn#") for bin in record.bins if bin.startswith("turn#")]
    if not homes:
        return "nobody decides yet", []
    now_at = BarrierState.of(record.key, record.bins, min(homes))
    here = sorted(f"{farm}/{party}" for (farm, party), turn in now_at.at.items() if turn == now_at.turn)
    last = now_at.ends.get(max(now_at.ends, default=0))
    found = []
    if last is not None and last.kind != MET:
        remedies = {
            "lost": "start the parties that died again: all meet at the next generation",
            "late": "find out why it was late, or give it more time: all meet at the next generation",
            "aborted": "all meet at the next generation once the reason is gone",
        }
        what = f"generation {max(now_at.ends)} was broken: {last.kind} {' '.join(map(str, last.why))}"
        found.append(Finding(PROBLEM, what, remedies.get(last.kind, "all meet at the next generation")))
    return f"generation {now_at.turn}, here: {', '.join(here) or 'nobody'}", found


def _limiter(record: Record, now: int) -> tuple[str, list[Finding]]:
    standing, found = [], []
    try:
        for bin, cells in sorted((bin, cells) for bin, cells in record.bins.items() if bin.startswith("per-")):
            width = int(bin.removeprefix("per-"))
            spent = sum(n for cell, n in cells.items() if cell >= now // width - CELLS)
            standing.append(f"{spent} in {width * CELLS / 1000:g} s")
            ahead = [cell for cell, n in cells.items() if n and cell > now // width + 1]
            if ahead:
                found.append(Finding(
                    PROBLEM,
                    f"calls are counted {(max(ahead) * width - now) / 1000:.0f} s ahead: the server's clock "
                    "was set back",
                    "it recovers after a window without an allowed call; set the clock right",
                ))  # fmt: skip
    except (AttributeError, TypeError, ValueError):
        raise Corrupt(f"the counts of a limiter are {shown(dict(record.bins))}") from None
    return ", ".join(standing) or "unused", found


LOOKS: Mapping[str, tuple[str, Look]] = {
    "group": (GROUPS, _group),
    "semaphore": (SEMAPHORES, _semaphore),
    "rwlock": (RWLOCKS, _rwlock),
    "limiter": (LIMITS, _limiter),
    "barrier": (BARRIERS, _barrier),
}
"""The set of each kind, and the function that judges a record of it."""


def election_state(name: str, office: Office) -> State:
    """Return the state of an election over all farms, with its findings."""
    found = [
        Finding(PROBLEM, f"farm {farm} cannot be looked at: {failure}",
                "its candidates do not lead; a leader elsewhere works without it, unless all_farms=True")
        for farm, failure in sorted(office.failures.items())
    ]  # fmt: skip
    found += [
        Finding(
            PROBLEM,
            f"farm {farm} has seen epoch {office.seen[farm]}, and the latest is {office.epoch}: a write of an earlier "
            "leader may still be accepted there",
            "a leader seals it once a second: check the way from the leader's farm to that store",
        )
        for farm in office.unsealed
        if office.stepped_down_by is None  # else the latest epoch is no leader's
    ]
    if office.has_run_out:
        what = f"{office.leader} has epoch {office.epoch} and has not renewed for {office.silent:.0f} s after its lease"
        found.append(Finding(PROBLEM, what, "it died or is paused: start a candidate, and see that ZooKeeper answers"))
    elif office.stepped_down_by is not None:
        then = successor(-office.silent, office.lease)
        what = f"{office.stepped_down_by} made the leader step down: {then}"
        found.append(Finding(WARNING, what, "see that a candidate is there, and that ZooKeeper answers it"))
    elif office.leader is None and office.failures:
        what = "it is not known who leads: a farm cannot be looked at"
        found.append(Finding(WARNING, what, "ask from a machine that reaches the stores of all farms"))
    elif office.leader is None:
        found.append(Finding(WARNING, "nobody leads", "start a candidate, and see that ZooKeeper answers it"))
    sealed = len(office.seen) - len(office.unsealed)
    nobody = "it is not known who leads" if office.failures else "nobody leads"
    who = nobody if office.leader is None else f"{office.leader} leads"
    who = f"nobody leads: {office.leader} led last" if office.has_run_out else who
    if office.stepped_down_by is not None:
        return State("election", name, "nobody leads", tuple(found))
    text = f"{who}, epoch {office.epoch} in {sealed} of {len(office.seen) + len(office.failures)} farms"
    return State("election", name, text if office.epoch else "none", tuple(found))
