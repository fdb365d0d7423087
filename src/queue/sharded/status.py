"""Where a message is, by its id, in any state (docs/protocols P26)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from ...errors import AlreadyExists, LatchworkError, NotFound
from ...inputs import is_int, is_number
from ...store import Key, Record, RecordStore, Update
from ...store.model.ops import ReadAll
from ...store.rows import Rows, chunked
from ..rows import read_each
from .delayed.entries import DelayedMessages
from .delayed.stored import Entry, is_retry
from .envelope import MAX_TIME, UNIQUE, date, from_bins
from .places import DELAYED, MAIN, PARKED, SIDE, TAKEN, Place, Places, Trace, first_slot
from .pointers import ShardPointers
from .rules import RESULT, SEEN
from .shards import Shards
from .slots import process_in

CHUNK = 1_000
"""Records that are read in one call."""
LOOKS = 4
"""How often the trace is read, of a message that moves from place to place meanwhile."""


class State(str, Enum):
    """Where a message is.

    READY: it waits for a consumer.
    RUNNING: a consumer has it.
    RETRYING: it has failed, and waits for its next attempt.
    PARKED: it had its last attempt.
    DELAYED: it is not due yet, or waits for the write that it goes with.
    DONE: it was acknowledged, and does not come again.
    GONE: it does not come again: somebody has cancelled, discarded or moved it. A consumer that was asked to stop may
        have acknowledged it instead; so may a program that receives from the sideline or the parked messages.
    EXPIRED: its life ended before anybody took it.
    UNKNOWN: nothing in the store says where it is: there was none of this id, or it is not remembered any more.
    """

    READY = "ready"
    RUNNING = "running"
    RETRYING = "retrying"
    PARKED = "parked"
    DELAYED = "delayed"
    DONE = "done"
    GONE = "gone"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    """A message as it was found.

    since: when it was published, taken, failed or parked, by the clock of who did it; None = not known. Of one that
        runs for long it is when its consumer extended that last: when the work on it began is not stored.
    worker: the process that has it, `host:pid`; None = nobody, or not known.
    attempts: how often it was handed out.
    progress, note: as the handler of this attempt has said, up to its last extension; the fraction is 0 to 1.
    due: when it comes, of one that is delayed or retrying.
    error: of its last failure, or the reason.
    cancelled: whether it is known that somebody has cancelled, discarded or moved it. One that is gone may have been
        discarded, or moved, without that being known.
    reason: why it has failed, or was parked: one of the closed set.
    kept: what is stored of its result (`ShardedQueue.result` reads it); None = nothing.
    hint: of an id that is unknown, what may be wrong with it; None = nothing is to be seen.

    The repr leaves out what may be confidential: the note and the error.
    """

    state: State
    since: datetime | None = None
    worker: str | None = None
    attempts: int = 0
    progress: float | None = None
    note: str | None = field(default=None, repr=False)
    due: datetime | None = None
    error: str | None = field(default=None, repr=False)
    cancelled: bool = False
    hint: str | None = None
    reason: str | None = None
    kept: object = field(default=None, repr=False)


class Finder:
    """The places of one message, by its id.

    server_ms: the server's time, where who looks for the message has read it; None = the time of this machine counts.
    """

    def __init__(self, sides: Sequence[Shards], delayed: DelayedMessages, places: Places, message_id: str) -> None:
        self.sides, self.delayed = {shards.side: shards for shards in sides}, delayed
        self.places, self.message_id = places, message_id
        self.server_ms: int | None = None
        first = first_slot(sides[0].name, message_id)
        self.first = first if first is not None and first.slot.shard < sides[0].shards else None

    def known(self) -> list[Place]:
        """Return the places that the id itself names: its first slot, and the delayed entry of this id."""
        entry = Place(0, DELAYED, None, self.message_id)
        return [entry] if self.first is None else [Place(self.first.at * 1000, MAIN, self.first.slot), entry]

    def now_ms(self) -> int:
        """Return the time by which it is told whether a life is over."""
        return int(self.delayed.store.seams.wall() * 1000) if self.server_ms is None else self.server_ms

    def key(self, place: Place) -> Key:
        """Return the key of the record at a place."""
        return self.delayed.entry(place.entry) if place.slot is None else self.sides[place.side].key(place.slot)


class Found(NamedTuple):
    """A message as it was found.

    place: where, None = nowhere.  bins: of the record there.
    certain: whether it stood still for long enough to be looked for everywhere.
    """

    status: Status
    place: Place | None
    bins: Mapping[str, Any]
    certain: bool = True


def status(find: Finder) -> Status:
    """Return where the message is, as `find_message` does."""
    return find_message(find).status


def find_message(find: Finder, seal: Update | None = None) -> Found:
    """Return where the message is: one call for one that waits or runs in its first slot, else two; three where it has
    moved and is gone.

    seal: an update that creates a record in its first place, so that it is nowhere for good if it is not found (P30).

    Raises the store's errors, also that of a record that cannot be read.
    """
    return _searched(find, seal).answer()


def copies(find: Finder) -> list[Found]:
    """Return what every record says of the message, also where it is over. Two calls, or three."""
    return _searched(find).found


def _searched(find: Finder, seal: Update | None = None) -> _Search:
    search = _Search(find)
    for _ in range(LOOKS):
        bins, refused = _read_and_sealed(find.delayed.store, search.keys(), seal)
        seal = seal if refused and bins[0] is None else None  # it came or went between the two rows
        if search.over(bins, again=seal is not None):
            break
    else:
        search.certain = False
    return search


def find_messages(finds: Sequence[Finder]) -> Rows[Found]:
    """Return where each of these messages of one queue is, as `find_message` does, or the error of a record of it that
    cannot be read. As many calls as for one, for each 1,000 records; some more if one cannot be read.

    Raises the other errors of the store.
    """
    searches = [_Search(find) for find in finds]
    failures: dict[int, LatchworkError] = {}
    left = list(range(len(searches)))
    for _ in range(LOOKS):
        if not left:
            break
        wanted = {n: searches[n].keys() for n in left}
        keys = list(dict.fromkeys(key for some in wanted.values() for key in some))
        records = dict(zip(keys, _read(finds[0].delayed.store, keys), strict=True))
        left = []
        for n, some in wanted.items():
            rows = Rows(records[key] for key in some)
            if damage := rows.errors():
                failures[n] = damage[0]
            elif not searches[n].over([record.bins if record else None for record in rows.values(None)]):
                left.append(n)
    for n in left:
        searches[n].certain = False
    return Rows(failures.get(n) or search.answer() for n, search in enumerate(searches))


def _read(store: RecordStore, keys: Sequence[Key]) -> Iterator[Record | LatchworkError | None]:
    for some in chunked(keys, CHUNK):
        yield from read_each(store, some)


class _Search:
    """The search for one message, from place to place: `keys` are read, `over` is told of them, in turn."""

    def __init__(self, find: Finder) -> None:
        self._find, self._open = find, find.known()
        self._seen, self.found = set[object](), list[Found]()
        self._trace: Trace | None = None
        self._shard = ShardPointers(0, 0, 0, None, 0)
        self._pointers = [] if find.first is None else [find.sides[MAIN].pointers_key(find.first.slot.shard)]
        self.certain = True

    def keys(self) -> list[Key]:
        """Return the places that are not read yet, and the trace; the first time also the pointers of its shard."""
        find = self._find
        return [*map(find.key, self._open), find.places.key(find.message_id), *self._pointers]

    def over(self, bins: list[Mapping[str, Any] | None], *, again: bool = False) -> bool:
        """Take in what is in these records; whether all that can be known of the message is.

        again: whether the same places have to be read once more.
        """
        find, before = self._find, self._open
        self.found += [
            Found(one, place, has)
            for place, has in zip(before, bins, strict=False)
            if has and (one := at_place(find, place, has))
        ]
        if self._pointers and find.first is not None:
            self._shard = ShardPointers.of(find.first.slot.shard, self._pointers[0], bins.pop() or {})
            self._pointers = []
        # The trace may name others. What was empty has left one, before it was: so the trace is read once more.
        self._trace = Trace.of(bins[-1], is_named=find.first is not None)
        if not again:
            self._seen.update(place[1:] for place in before)
        places = self._trace.places if self._trace else ()
        self._open = [place for place in places if place[1:] not in self._seen] + (before if again else [])
        return not self._open and (
            not before or any(one.status.state in LIVING or one.status.kept is not None for one in self.found)
        )

    def answer(self) -> Found:
        """Return where the message is, of several copies the one that is nearest to a handler, of equal ones the
        newest: of an id that was published again the last result counts.
        """
        trace = self._trace
        # What was left where it is no more says nothing.
        last = trace.places[-1][1:] if trace and trace.places else None
        counts = [
            one
            for one in self.found
            if one.status.state in LIVING or one.status.kept is not None or last in (None, one.place and one.place[1:])
        ]
        newest: dict[object, int] = {place[1:]: n for n, place in enumerate(trace.places if trace else ())}
        best = min(
            counts,
            key=lambda one: (
                _ORDER.index(one.status.state),
                one.status.kept is None,  # places are dated by the clocks of who wrote them, which may be ahead
                -newest.get(one.place and one.place[1:], -1),
            ),
            default=None,
        )
        best = (best or Found(_gone(self._find, trace, self._shard), None, {}))._replace(certain=self.certain)
        if trace is None or trace.cancelled is None or best.status.kept is not None:
            return best
        state = State.GONE if best.status.state is State.DONE else best.status.state
        return best._replace(status=replace(best.status, cancelled=True, state=state))


def _read_and_sealed(
    store: RecordStore, keys: Sequence[Key], seal: Update | None
) -> tuple[list[Mapping[str, Any] | None], bool]:
    """Return what is in these records, and whether there was one already where the seal was to be."""
    if seal is None:
        return [record.bins if record else None for record in store.get_many(keys)], False
    *rows, sealed = store.repeat_many([*(Update(key, (ReadAll(),)) for key in keys), seal])
    for row in (*rows, sealed):
        if isinstance(row, LatchworkError) and not isinstance(row, NotFound | AlreadyExists):
            raise row
    return [None if isinstance(row, LatchworkError) else row[0] for row in rows], isinstance(sealed, AlreadyExists)


LIVING = (State.RUNNING, State.READY, State.RETRYING, State.DELAYED, State.PARKED)
_ORDER = (*LIVING, State.DONE, State.GONE, State.EXPIRED)


def _gone(find: Finder, trace: Trace | None, shard: ShardPointers) -> Status:
    """Return what is known of a message that is nowhere."""
    now = find.now_ms() / 1000
    if trace is not None and trace.places:
        last = trace.places[-1]
        life = find.delayed.kept if last.slot is None else find.sides[last.side].ttl
        # Who tries it again brings it to the queue: only there it is acknowledged by a handler of the queue.
        over = State.DONE if last.side == MAIN else State.GONE
        return Status(over if now < last.at / 1000 + life else State.UNKNOWN)
    if trace is not None and trace.cancelled is not None:
        return Status(State.GONE)
    if find.first is None or not find.first.checked:
        return Status(State.UNKNOWN, hint=_hint(find))
    # Nobody has the id before the message is safe, so it was there.
    if now < find.first.at + find.sides[MAIN].ttl:
        return Status(State.DONE if find.first.slot.pointer <= shard.loaded else State.UNKNOWN)
    return Status(State.UNKNOWN if find.first.slot.pointer <= shard.fired else State.EXPIRED)


def _hint(find: Finder) -> str | None:
    if find.first is not None:
        return "it has no check characters, as ids of an earlier version: nothing shows that there was such a message"
    if "~" in find.message_id:
        return "publish of this queue gives no such id: a character is wrong, or it is an id of another queue"
    if _SHORT.fullmatch(find.message_id):
        return (
            "if publish gave it, it goes on with a '~': give the whole id; "
            "an id that was known before its message is not found until that has failed or moved"
        )
    return None


_SHORT = re.compile(rf"{UNIQUE}([0-9a-f]{{4}})?")


def at_place(find: Finder, place: Place, bins: Mapping[str, Any]) -> Status | None:
    """Return what a record says of the message; None where it holds none of this id."""
    if place.slot is None:
        return _delayed(find, place.entry, Entry.of(bins), bins)
    if bins.get("msgId") != find.message_id:
        return None
    envelope = from_bins(bins)
    if envelope is None:  # discarded or moved; else acknowledged, and its id is kept, or groups have it
        taken = TAKEN in bins
        kept = bins.get(RESULT)
        if kept is not None:
            return Status(State.DONE, kept=kept)
        return Status(State.GONE if taken or place.side != MAIN else State.DONE, cancelled=taken)
    delivery, error = bins.get("delivery"), envelope.last_error or envelope.reason
    if isinstance(delivery, str) and delivery != SEEN:
        part, note = _progress(bins.get("progress"), delivery)
        worker = process_in(delivery)
        since, asked = _date(bins.get("fireTS")), envelope.cancel is not None
        return Status(State.RUNNING, since, worker, envelope.attempts, part, note, None, error, asked)
    since = _date(bins.get("fireTS")) or date(envelope.enqueued_at)
    due = date(envelope.not_before) if envelope.not_before else None
    reason = envelope.reason
    return Status(_WAITING[place.side], since, None, envelope.attempts, due=due, error=error, reason=reason)


_WAITING = {MAIN: State.READY, SIDE: State.RETRYING, PARKED: State.PARKED}


def _delayed(find: Finder, name: str, entry: Entry, bins: Mapping[str, Any]) -> Status | None:
    if entry.moved:
        return None
    if entry.cancelled is not None:
        return Status(State.GONE, cancelled=True) if name == find.message_id else None
    message = entry.message
    if message is None or message.msg_id != find.message_id:
        return None
    # One that waits for its write (P28) may have been looked at; it is not on its way before that is known.
    on_its_way = entry.moving and not entry.unsure
    state = State.READY if on_its_way else State.RETRYING if is_retry(name) else State.DELAYED
    if entry.is_over(find.delayed.config.message_expiry, find.now_ms()):
        state = State.EXPIRED
    due = date(entry.due) if entry.due else None
    since = _date(bins.get("modified_at")) or date(message.enqueued_at)
    error = message.last_error or message.reason
    return Status(state, since, None, message.attempts, due=due, error=error, reason=message.reason)


def _progress(stored: Any, delivery: str) -> tuple[float | None, str | None]:
    """Return how far the work of this delivery is; nothing of another one's."""
    if not isinstance(stored, list) or len(stored) != 3 or stored[0] != delivery:
        return None, None
    _, part, note = stored
    return float(part) if is_number(part) else None, note if isinstance(note, str) else None


def _date(stored: Any) -> datetime | None:
    return date(stored) if is_int(stored) and 0 < stored <= MAX_TIME else None
