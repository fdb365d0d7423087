"""Barriers: parties that wait for each other, again and again, and exchange data (docs/protocols P11).

    barrier = Barrier(store, "shop", "nightly", parties=["orders", "stock"])
    with group.join("orders"):
        offsets = barrier.wait("orders", payload={"upto": 1200}, timeout=600, alive=group)
    offsets["stock"]                                        # what the other one brought

Each meeting is a generation, which ends once, for all parties: all have arrived, or it is broken, with the reason. One
step on one record decides that, in the farm that decides; all others read how it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...deadline import Deadline
from ...errors import BarrierBroken, InvalidRequest, LatchworkError, NotFound, PartyLost, WaitTimeout
from ...inputs import checked_kind, checked_text, checked_timeout, farm_or_default
from ...plain import shown
from ...retry import may_pass, outlive
from ...store.connect import as_store
from ...store.port import RecordStore
from ..farms import checked_farm, checked_ttl
from ..latch.latch import LatchLevel
from ..presence.presence import Alarm, Group
from ..waits import measured
from .layout import (
    ABORTED,
    LATE,
    LOST,
    MET,
    End,
    Place,
    barrier_key,
    checked_parties,
    checked_payload,
    checked_reason,
    digest,
    end_by,
    updates_of,
)  # fmt: skip
from .meeting import BarrierRecord, Meeting

__all__ = ["Barrier", "BarrierProgress"]


@dataclass(frozen=True, slots=True)
class BarrierProgress:
    """A barrier at one moment: which parties have arrived at the present generation, and which have not.

    generation: its number, which grows; None before the first party came.
    last: how the previous one ended: "met", or "lost", "late" or "aborted" with the parties or the reason; None if
        there was none.
    """

    generation: int | None
    arrived: frozenset[str]
    missing: frozenset[str]
    last: str | None


class Barrier:
    """Parties that wait for each other. Handles are cheap, safe to share between threads, and pickle with their store.

    parties: all that meet, at most 1,000, each by a name of at most 100 bytes; every handle names all of them. At XDC
        level as `"farm/party"`: parties of all farms meet then, and the first farm by the alphabet decides how it ends.
    farm_id: whose parties this handle is for; default $LATCHWORK_FARM, else "local".
    ttl: seconds that the records are kept after each write.
    """

    def __init__(
        self,
        store: RecordStore,
        client_id: str,
        name: str,
        *,
        parties: Iterable[str],
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 86_400,
    ) -> None:
        self.name, self.farm = name, checked_farm(farm_or_default(farm_id))
        self._farms = checked_kind("level", level, LatchLevel) is LatchLevel.XDC
        places = checked_parties(parties, self.farm, farms=self._farms)
        home = min(farm for farm, _ in places.values())
        key, updates = barrier_key(client_id, name), updates_of(self.farm, home, checked_ttl(ttl))
        self._record = BarrierRecord(as_store(store), key, self.farm, home, places, digest(places.values()), updates)
        self._names = {place: name for name, place in places.items()}
        self._again = partial(
            Barrier, store, client_id, name, parties=list(places), farm_id=self.farm, level=level, ttl=ttl
        )

    def __repr__(self) -> str:
        return f"Barrier({self._record.key.name!r}, farm={self.farm!r}, parties={len(self._names)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    def wait(
        self, party: str, payload: Any = None, timeout: float | None = None, *, alive: Group | None = None
    ) -> dict[str, Any]:
        """Arrive, and wait until all have arrived; return what each of them has brought, by party.

        party: one of this handle's farm, without the farm's name.
        payload: JSON of at most 64 KiB, for the others.
        timeout: seconds, None = no limit.
        alive: a group that the parties are members of, by their names: the meeting is broken if one of them has died,
            within its lease.

        A party arrives once. If it is started again before the meeting ended, it counts as the one that arrived, with
        what that one brought; after the end it arrives at the next meeting. A wait whose end is not known
        (`Unavailable`, `OutcomeUnknown`, an interrupt) is continued by the next wait of this handle.

        About six store calls, three more for a party that opens it, and 10 to 25 reads a second while it waits,
        together with all other waits of this process.

        Raises `WaitTimeout` after the timeout, and `PartyLost`; both break the meeting for all that have arrived. If
        many parties died, `PartyLost` names some, 500 bytes in all, and says how many others there were: all of them
        are in `alive.lost()`.
        Raises `BarrierBroken` if another party's timeout was over, or the meeting was aborted; `NotFound` if the record
        was lost or deleted, or what a party brought (the next wait is then for another meeting); `InvalidRequest` if
        other handles name other parties. In a farm that does not decide: `OutcomeUnknown` if the timeout is over and
        the deciding farm has not said how the meeting ended; `PartyLost` then has `details["doubt"]`, and also if the
        record was lost.
        """
        place, text, timeout = self._place(party), checked_payload(payload), checked_timeout(timeout)
        alarm = None if alive is None else Alarm(alive, partial(self._dead, place), repr(self))
        record, seams = self._record, self._record.store.seams
        seams.may_wait("Barrier.wait", timeout)
        meeting = Meeting(record, place, text)
        with Deadline(seams, timeout) as deadline:

            def ended() -> End | None:
                end = outlive(seams, deadline, meeting.look, passing=may_pass)
                if end is None and alarm is not None:
                    alarmed = partial(self._alarmed, partial(alarm.check, deadline), meeting)
                    end = outlive(seams, deadline, alarmed, passing=may_pass)
                return end

            due = (lambda: alarm.due) if alarm else None
            end = measured(seams, "barrier", lambda: meeting.watch.until(ended, timeout=timeout, due=due))
            if end is None:
                end = self._late(meeting)
            if end.kind == MET and meeting.turn is not None:
                turn = meeting.turn
                try:
                    brought = outlive(seams, deadline, lambda: record.payloads(turn), passing=may_pass)
                except NotFound:  # the end is known, and what was lost never comes back: the next wait is another one
                    meeting.forget()
                    raise
                meeting.forget()
                return brought
        meeting.forget()
        raise self._broken(end, place)

    def abort(self, reason: str) -> bool:
        """Break the present meeting, for the parties that have arrived; a party that comes later is at the next one.

        True if this broke it; False if it has just ended otherwise, or no party ever came. Two store calls. Raises
        `OutcomeUnknown` in a farm that does not decide, if the deciding farm has not answered; `NotFound` if the record
        is deleted meanwhile.
        """
        end, record = End(ABORTED, (checked_reason(reason),)), self._record
        turn = record.look().turn
        if turn is None:
            return False
        ended = record.end(turn, end)
        if ended is None:
            raise record.undecided(turn)
        return ended == end

    def progress(self) -> BarrierProgress:
        """Return which parties have arrived, and which have not. One read. Raises `InvalidRequest` if other handles
        name other parties.
        """
        now = self._record.look()
        self._record.check_parties(now)
        here = {name for place, name in self._names.items() if now.turn is not None and now.at.get(place) == now.turn}
        last = now.ends.get(max(now.ends, default=0))
        ending = None if last is None else " ".join(last.stored)
        return BarrierProgress(now.turn, frozenset(here), frozenset(self._names.values()) - here, ending)

    def delete(self) -> bool:
        """Delete the record, so that other parties may use the name; False where there was none.

        A party that waits gets `NotFound`.
        """
        return self._record.store.delete(self._record.key, repeatable=True)

    def _place(self, party: str) -> Place:
        place = self.farm, checked_text("party", party)
        if place not in self._names:
            raise InvalidRequest(
                f"party {shown(party)} of farm {shown(self.farm)} is not one of the parties of {self!r}: name it in "
                "`parties`"
            )
        return place

    # ---- how it is broken

    def _dead(self, mine: Place, group: Group, lost: set[str]) -> set[str]:
        """Return the lost members that are parties, without the one that asks."""
        members = {
            f"{farm if self._farms else group.farm}/{party}": name for (farm, party), name in self._names.items()
        }
        return {members[one] for one in lost & members.keys()} - {self._names[mine]}

    def _alarmed(self, check: Callable[[], None], meeting: Meeting) -> End | None:
        """Break the meeting where one of its parties has died."""
        try:
            check()
        except PartyLost as lost:
            end = None if meeting.turn is None else self._record.end(meeting.turn, end_by(lost.parties))
            if end is None:
                lost.details["doubt"] = meeting.arrived is not False
                raise
            return end
        return None

    def _late(self, meeting: Meeting) -> End:
        """Break the meeting after the timeout, unless it has ended meanwhile; return how it ended."""
        # An arrival that is repeated after a lost reply is refused if it was applied: only the record says whether the
        # party is there. It may also have arrived with its last look, as the last one.
        end = None if meeting.turn is None else meeting.look(arrives=False)
        if end is not None:
            return end
        if meeting.turn is None or not meeting.arrived:
            raise WaitTimeout(
                f"the timeout was over before {meeting.place[1]!r} had arrived at {self!r}, which is open once a party "
                f"of farm {self._record.home!r} is there: wait longer"
            )
        turn, record = meeting.turn, self._record
        end = record.end(turn, End(LATE, (self._names[meeting.place],)))
        if end is None:
            if record.decides:
                meeting.forget()  # its record was deleted at this moment
            raise record.undecided(turn)
        return end

    def _broken(self, end: End, place: Place) -> LatchworkError:
        why = ", ".join(end.why)
        if end.kind == LOST:
            known = set(self._names.values())  # not how many others there were
            return PartyLost(
                f"{self!r} is broken: {why} died; start them again, and wait again",
                parties=[name for name in end.why if name in known],
            )
        if end.kind == ABORTED:
            return BarrierBroken(f"{self!r} was aborted: {why}", reason=why)
        if end.why == (self._names[place],):
            return WaitTimeout(f"not all parties arrived at {self!r} in time; the parties that did get BarrierBroken")
        return BarrierBroken(f"{self!r} is broken: the timeout of {why} was over; wait again", reason=f"{why} was late")
