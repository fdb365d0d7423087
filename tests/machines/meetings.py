"""A barrier in plain Python: its generations, who has arrived at each and with what, and how each ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import BarrierBroken, NotFound, OutcomeUnknown, PartyLost, WaitTimeout

INTERRUPTED = "interrupted"
"""A wait was interrupted before the meeting ended."""
LEASE = 1.0
"""Seconds of every membership; nobody renews."""
Said = Any
"""How a wait ended: all payloads by party, or the type of the error and its details, or `INTERRUPTED`."""


@dataclass(eq=False)
class Generation:
    """One meeting.

    said: the payload of each party that has written one; it need not have arrived.
    end: the kind of its end, and the parties or the reason; None while it is open.
    deleted: whether the record was deleted, so that nobody can learn how it ended any more.
    seen: the parties whose processes have seen that they have arrived.
    """

    said: dict[str, str] = field(default_factory=dict)
    arrived: set[str] = field(default_factory=set)
    end: tuple[str, ...] | None = None
    deleted: bool = False
    seen: set[str] = field(default_factory=set)


class Meetings:
    """The barrier. A wait of the model is one that nothing else happens beside.

    farms: the farm of each party, by its name.
    home: the farm that decides.
    at: the generation of each party's process whose end that process does not know yet.
    heard: the generations whose end the party's process knows.
    stop: the generation that the other farm has last asked to end, and how.
    present, dead: the members of the group, and those that were found to be lost.
    """

    def __init__(self, farms: dict[str, str]) -> None:
        self.farms, self.home = farms, min(farms.values())
        self.generations: list[Generation] = []
        self.at: dict[str, Generation | None] = dict.fromkeys(farms)
        self.heard: dict[str, list[Generation]] = {name: [] for name in farms}
        self.stop: tuple[Generation, tuple[str, ...]] | None = None
        self.present: set[str] = set()
        self.dead: set[str] = set()

    @property
    def now(self) -> Generation | None:
        """The present generation; None if there is no record."""
        return self.generations[-1] if self.generations else None

    @property
    def last(self) -> tuple[str, ...] | None:
        """How the previous generation ended."""
        return self.generations[-2].end if len(self.generations) > 1 else None

    def decides(self, name: str) -> bool:
        """Whether the party is in the farm that decides."""
        return self.farms[name] == self.home

    # ---- verbs

    def wait(self, name: str, payload: str, *, seconds: float, interrupted: bool, alive: bool) -> Said:
        """Arrive and wait, for so many seconds; return how that ends."""
        mine, dead = self.at[name], self.dead - {name} if alive else set()
        if mine is not None and mine.end is not None and name in mine.arrived and not mine.deleted:
            return self.tell(name, mine)
        if mine is not None and mine.deleted and (self.decides(name) or name in mine.seen):  # also if it was made again
            self.at[name] = None
            return (NotFound,)
        opens = self.now is None  # with its first look: it arrives with the second
        if self.now is None and self.decides(name):
            self.generations.append(Generation())
        if opens and dead:
            return (PartyLost, *sorted(dead))
        if self.now is None or (opens and seconds == 0):
            gone = self.watch(name) if alive and seconds > LEASE else set()
            if gone:
                return (PartyLost, *sorted(gone))
            return INTERRUPTED if interrupted else (WaitTimeout,)
        return self._stay(name, payload, dead, seconds=seconds, interrupted=interrupted, alive=alive)

    def _stay(self, name: str, payload: str, dead: set[str], *, seconds: float, interrupted: bool, alive: bool) -> Said:
        now = self.now
        assert now is not None
        was_there = name in now.arrived
        now.said.setdefault(name, payload)
        now.arrived.add(name)
        now.seen.add(name)
        self.at[name] = now
        if dead and not was_there:
            return self._lose(name, dead)
        if self.decides(name):
            asked = self.stop[1] if self.stop and self.stop[0] is now else None
            if asked or now.arrived == self.farms.keys():
                self.finish(asked or ("met",))
                return self.tell(name, now)
        if dead:
            return self._lose(name, dead)
        if alive and seconds > LEASE:
            gone = self.watch(name)
            if gone:
                return self._lose(name, gone)
        if interrupted:
            return INTERRUPTED
        return self.tell(name, now) if self._ended(name, ("late", name)) else (OutcomeUnknown,)

    def _lose(self, name: str, dead: set[str]) -> Said:
        now = self.now
        assert now is not None
        return self.tell(name, now) if self._ended(name, ("lost", *sorted(dead))) else (PartyLost, *sorted(dead))

    def abort(self, name: str, reason: str) -> Said:
        """Break the present generation, from the farm of this party."""
        if self.now is None:
            return False
        return True if self._ended(name, ("aborted", reason)) else (OutcomeUnknown,)

    def _ended(self, name: str, end: tuple[str, ...]) -> bool:
        """Whether the party could end it; from the other farm it can only ask for that."""
        assert self.now is not None
        if not self.decides(name):
            self.stop = self.now, end
            return False
        self.finish(end)
        return True

    def finish(self, end: tuple[str, ...]) -> None:
        """End the present generation; the next one begins."""
        assert self.now is not None
        self.now.end = end
        self.generations.append(Generation())

    def delete(self) -> bool:
        """Delete the record; return whether there was one."""
        was_there = self.now is not None
        for generation in self.generations:
            generation.deleted = True
        self.generations, self.stop = [], None
        return was_there

    def restart(self, name: str) -> None:
        """Start the process of a party again: it knows of no meeting."""
        self.at[name], self.heard[name] = None, []
        for generation in self.generations:
            generation.seen.discard(name)

    def watch(self, name: str) -> set[str]:
        """Let the party watch the group for longer than a lease; return the others that are dead then.

        It removes those of its own farm; other farms have to see for themselves.
        """
        gone = (self.present | self.dead) - {name}
        removed = {one for one in self.present if self.farms[one] == self.farms[name]}
        self.present -= removed
        self.dead |= removed
        return gone

    # ---- what parties hear

    def tell(self, name: str, generation: Generation) -> Said:
        """Return what the party hears of the end of a generation, which it may hear once."""
        assert generation not in self.heard[name], f"{name} hears of one meeting twice"
        self.heard[name].append(generation)
        self.at[name] = None
        return self.hears(name, generation)

    def hears(self, name: str, generation: Generation) -> Said:
        """Return what the party hears of the end of a generation."""
        assert generation.end is not None
        kind, *why = generation.end
        if kind == "met":
            return dict(generation.said)
        if kind == "lost":
            return (PartyLost, *why)
        if kind == "aborted":
            return (BarrierBroken, *why)
        return (WaitTimeout,) if why == [name] else (BarrierBroken, f"{why[0]} was late")


def plainly(answer: Any) -> Said:
    """Return what a wait came to, as the model says it."""
    if isinstance(answer, PartyLost):
        return (PartyLost, *answer.parties)
    if isinstance(answer, BarrierBroken):
        return (BarrierBroken, answer.reason)
    return (type(answer),) if isinstance(answer, Exception) else answer
