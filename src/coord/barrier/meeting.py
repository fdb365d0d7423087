"""One generation of a barrier: arriving, deciding how it ends, and learning of the decision (docs/protocols P11)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import BarrierBroken, InvalidRequest, NotFound, OutcomeUnknown, Refused
from ...plain import shown
from ...retry import Poll
from ...store.decode import damaged
from ...store.port import Key, RecordStore, Update
from ..farms import farms_of
from ..waits import Watch
from .layout import KEPT_ENDS, MET, SAID, BarrierState, BarrierUpdates, Brought, End, Place, payload_key

BARRIER_POLL = Poll(low=0.005, high=0.1, factor=1.5)
"""Half of all meetings are seen within 50 ms; 10 reads a second after a while."""
GRACE = 0.8
"""Seconds after its own time for which a party waits for the farm that decides."""


@dataclass(frozen=True, slots=True)
class BarrierRecord:
    """A barrier's record, its parties, and the farm that decides.

    digest: of the parties.
    pending: the generations whose end this handle does not know yet, by party.
    seen: the generation that this handle has last seen each party arrive at.
    """

    store: RecordStore
    key: Key
    farm: str
    home: str
    places: Mapping[str, Place]
    digest: str
    updates: BarrierUpdates
    pending: dict[Place, int] = field(default_factory=dict)
    seen: dict[Place, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the barrier {self.key.name!r}"

    @property
    def decides(self) -> bool:
        """Whether this farm does."""
        return self.farm == self.home

    def look(self, watch: Watch | None = None) -> BarrierState:
        """Return the barrier now. One read; watch: the wait that this look is part of."""
        record = watch.read().record if watch else self.store.get(self.key)
        return BarrierState.of(self.key, record.bins if record else {}, self.home)

    def check_parties(self, now: BarrierState) -> None:
        """Raise `InvalidRequest` if the barrier was begun by a handle that names other parties."""
        if now.names not in (None, self.digest):
            raise InvalidRequest(f"{self} has other parties: name equal parties in all handles, or delete it first")

    def watch(self) -> Watch:
        """Return a wait for the barrier."""
        return Watch(self.store, self.key, (), BARRIER_POLL)

    def send(self, update: Update) -> bool | None:
        """Whether it was done; False where it was refused, None where an attempt before that may have done it. Every
        update of a barrier may be repeated.
        """
        try:
            self.store.repeat(update)
        except (Refused, NotFound) as refusal:
            return None if refusal.details["doubt"] else False
        return True

    def end(self, turn: int, end: End) -> End | None:
        """End a generation in this way; return how it has ended, None if the deciding farm does not say so in time."""
        if self.decides:
            done = self.send(self.updates.decide.fill(self.key, turn=turn, end=end.stored))
            return end if done else self.look().ends.get(turn)
        self.send(self.updates.request_end.fill(self.key, stop=[turn, *end.stored]))
        watch = self.watch()
        return watch.until(lambda: self.look(watch).ends.get(turn), timeout=GRACE)

    def all_here(self, now: BarrierState, turn: int) -> bool:
        """Whether all parties have arrived at this generation."""
        return all(now.at.get(place, 0) >= turn for place in self.places.values())

    def payloads(self, turn: int) -> dict[str, Any]:
        """Return what all have brought. One batch. Raises `NotFound`, `Corrupt`; for a party of another
        farm, whose record may not have come here yet, `OutcomeUnknown`.
        """
        found = {}
        for name, farm, key, said in self._brought():
            if turn not in said and farm == self.farm:
                raise NotFound(f"all arrived at {self}, but the value of {name} has expired or was deleted: wait again")
            if turn not in said:  # records are shipped in no order
                raise OutcomeUnknown(
                    f"all arrived at {self}, but the value of {name} is not in this farm's store yet: wait again with "
                    "this handle"
                )
            try:
                found[name] = json.loads(said[turn])
            except (ValueError, RecursionError):
                raise damaged(key, f"bin {SAID}{shown(farm)} holds something else than JSON") from None
        return found

    def newest(self) -> int:
        """Return the newest generation that any party has brought something to; 0 if there is none. One batch."""
        return max((turn for *_, said in self._brought() for turn in said), default=0)

    def _brought(self) -> list[tuple[str, str, Key, dict[int, str]]]:
        """Return for each party its name, its farm, the key of its record, and what that says, by generation. One
        batch. Raises `Corrupt`.
        """
        keys = [payload_key(self.key, place) for place in self.places.values()]
        found = []
        for key, (name, (farm, _)), record in zip(keys, self.places.items(), self.store.get_many(keys), strict=True):
            stored = farms_of(Brought, key, record.bins if record else {})
            found.append((name, farm, key, stored.get(farm, Brought()).said))
        return found

    def gone(self) -> NotFound:
        """Return the error if the record was lost."""
        return NotFound(
            f"the record of {self} was deleted or has expired, or the store came back older: wait again", key=self.key
        )

    def undecided(self, turn: int) -> OutcomeUnknown | NotFound:
        """Return the error if it is not known how a generation ended: in the farm that decides, the record is gone."""
        if self.decides:
            return self.gone()
        return OutcomeUnknown(
            f"it is not known yet how generation {turn} of {self} ended: farm {self.home!r}, which decides, has not "
            "answered; wait again with this handle",
            key=self.key,
        )


class Meeting:
    """The wait of one party.

    turn: the generation that it is for, once that is known.
    arrived: whether the party is there, as far as the record was read; None = it may be.
    watch: waits for changes.
    """

    def __init__(self, record: BarrierRecord, place: Place, payload: str) -> None:
        self._record, self.place, self._payload = record, place, payload
        self.turn = record.pending.get(place)
        self.arrived: bool | None = self.turn is not None and record.seen.get(place) == self.turn
        self.watch = record.watch()

    def look(self, *, arrives: bool = True) -> End | None:
        """Return how the meeting ended; None if it has not. Arrives if that was not done yet, unless `arrives` is
        False.
        """
        record, now = self._record, self._record.look(self.watch)
        record.check_parties(now)
        if self.turn is not None and now.turn != self.turn and self._made_again(now, self.turn):
            raise self._lost()
        if now.turn is None or now.turn < (self.turn or 0):
            self._open(now)
            return None
        if self.turn is not None and now.turn > self.turn > now.at.get(self.place, 0):
            self.forget()  # it ended before this party was there. It must arrive now: the record may change no more
        if self.turn is None:
            self.turn = record.pending[self.place] = now.turn
        self._saw(self.turn, now.at.get(self.place, 0) >= self.turn)
        if now.turn > self.turn:
            return self._ended(now, self.turn)
        if not self.arrived:
            if arrives:
                self._arrive(self.turn)
            return None
        return self._decide(now, self.turn)

    def forget(self) -> None:
        """Note that the end is known: the next wait is for another generation."""
        self._record.pending.pop(self.place, None)
        self.turn = None

    def _open(self, now: BarrierState) -> None:
        """Create the record, above all generations of an earlier one: if the server's clock was set back, what the
        parties bring would be trimmed away as the oldest, and arrivals in other farms, which `now` may have, would
        count again.
        """
        record, turn = self._record, self.turn
        if not record.decides:
            return  # it has not come here yet
        if turn is None:
            newest = max([record.newest(), *now.at.values()])
            record.send(record.updates.open.fill(record.key, names=record.digest, turn=newest))
            return
        raise self._lost()

    def _made_again(self, now: BarrierState, turn: int) -> bool:
        """Whether this is not the record of this generation, which is not the present one: that has the party's
        arrival, and how it ended.
        """
        if self.arrived and now.at.get(self.place, 0) < turn:
            return True
        over = now.turn is not None and now.turn > turn
        return self._record.decides and over and turn not in now.ends and len(now.ends) < KEPT_ENDS

    def _lost(self) -> NotFound:
        """Return the error if the record was lost. The next wait is for another meeting."""
        self.forget()
        return self._record.gone()

    def _arrive(self, turn: int) -> None:
        """Arrive. What the party brings is written first, and once: what others may have read never changes."""
        record = self._record
        brought = record.updates.put_payload.fill(payload_key(record.key, self.place), turn=turn, payload=self._payload)
        record.send(brought)
        self._saw(turn, record.send(record.updates.arrive.fill(record.key, party=self.place[1], turn=turn)))

    def _saw(self, turn: int, arrived: bool | None) -> None:
        """Note whether the party is there. The next wait of the handle has to know it too."""
        self.arrived = arrived
        if arrived:
            self._record.seen[self.place] = turn

    def _decide(self, now: BarrierState, turn: int) -> End | None:
        """Decide, in the farm that decides: end the generation if another farm has asked for that, or all
        have arrived.
        """
        record = self._record
        if not record.decides:
            return None
        asked = [end for asked_for, end in now.stops.values() if asked_for == turn]
        if asked:
            return record.end(turn, asked[0])
        return record.end(turn, End(MET)) if record.all_here(now, turn) else None

    def _ended(self, now: BarrierState, turn: int) -> End | None:
        if turn not in now.ends and self._record.decides:
            self.forget()
            raise BarrierBroken(
                f"{self._record} has gone on without {self.place[1]!r} for a long time: wait again", reason="gone on"
            )
        return now.ends.get(turn)
