"""Where a message went: the slot in its id, and the trace that it leaves once it is anywhere else (docs/protocols P26).

Set `{client}_place_set`, key `{queue}/{id}`. Bins: `places`, a map whose keys are a time and a place, the newest 8;
`cancelled`, by whom.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple
from urllib.parse import quote

from ...store import Bin, Key, MapPut, MapRemove, MapTrim, Param, Put, Read, RecordStore, Update, exists, missing
from ...store.model.expr import Bound
from ...store.model.form import Form
from ...store.model.ops import Op
from ...store.model.record import Exists
from ...store.rows import Rows
from .envelope import CONTENT, UNIQUE
from .rules import ALONE, SEEN
from .slots import Slot, slot_text

PLACES, CANCELLED = "places", "cancelled"
MOST = 8
"""Places that a trace names. More would be of copies, as of a message whose consumers are stopped again and again."""
MAIN, SIDE, PARKED, DELAYED = "main", "side", "parked", "delayed"
TAKEN = "taken"
"""The bin with the id of who deletes, or moves, a message that waits."""

_NAMED = re.compile(rf"({UNIQUE})([0-9a-f]{{4}})?(~([0-9a-f]{{1,10}})\.([0-9]{{1,3}})\.([0-9]{{1,18}}))")
_PLACE = re.compile(r"([0-9]{14}) (main|side|parked) ([0-9]{1,3}):([0-9]{1,18})\Z|([0-9]{14}) (delayed) (.+)\Z", re.S)

_DELIVERY = Bin("delivery", str)
_MINE = Bin(CANCELLED, str).eq(Param("me", str))
_IS_IT = exists("data") & Bin("msgId", str).eq(Param("id", str))
_DROP = tuple(Put(bin, None) for bin in (*CONTENT, "delivery") if bin != "batch")
_DROP_COPY = tuple(Put(bin, None) for bin in (*CONTENT, "delivery", "msgId", "keepId", TAKEN))
_WAITS = _IS_IT & ALONE & (missing("delivery") | _DELIVERY.eq(SEEN))
ASKING = Form(Put("cancel", Param("me", str)), when=_IS_IT & ALONE & exists("delivery") & _DELIVERY.ne(SEEN))
"""Asks the consumer that has a message to stop."""


def dropping(key: Key, message_id: str, me: str, now_ms: int, ttl: int) -> Update:
    """Return the update that deletes a message which nobody has, and reads its place in a batch. A tombstone stays."""
    ops: tuple[Op, ...] = (*_DROP, Put(TAKEN, me), Put("modified_at", now_ms), Read("batch"))
    return Update(key, ops, Bound(_WAITS, {"id": message_id}), ttl=ttl)


def dropping_copy(key: Key, message_id: str, now_ms: int, ttl: int) -> Update:
    """Return the update that deletes a copy which nobody has, of a message that is elsewhere. A tombstone stays, which
    says nothing of the message: it was not cancelled.
    """
    return Update(key, (*_DROP_COPY, Put("modified_at", now_ms)), Bound(_WAITS, {"id": message_id}), ttl=ttl)


def named(queue: str, unique: str, seconds: int, slot: Slot) -> str:
    """Return the id of a message that names its first slot, and when it was published, with check characters."""
    rest = f"~{seconds:x}.{slot.shard}.{slot.pointer}"
    return f"{unique}{_check(queue, unique + rest)}{rest}"


def _check(queue: str, id: str) -> str:
    """Return the check characters of an id without them: CRC-16 of it and its queue. No id of which one character, or
    two neighbours, are wrong has the same.
    """
    return f"{crc_hqx(f'{queue}/{id}'.encode(errors='surrogatepass'), 0):04x}"


class FirstSlot(NamedTuple):
    """The slot in an id, and when the message was published: seconds since the epoch, by its publisher's clock.

    checked: whether its check characters are right; an id of an earlier version has none.
    """

    slot: Slot
    at: int
    checked: bool


def first_slot(queue: str, message_id: str) -> FirstSlot | None:
    """Return what an id that `publish` of this queue made says; None for every other id."""
    found = _NAMED.fullmatch(message_id)
    if found is None or (found[2] and found[2] != _check(queue, found[1] + found[3])):
        return None
    return FirstSlot(Slot(int(found[5]), int(found[6])), int(found[4], 16), bool(found[2]))


class Place(NamedTuple):
    """A place that a trace names.

    at: ms since the epoch, by the clock of who brought the message there.
    slot: in that side of the queue; None = the delayed entry `entry`.
    """

    at: int
    side: str
    slot: Slot | None
    entry: str = ""


class Trace(NamedTuple):
    """A trace as it was read: the places, the oldest first, and who has cancelled the message."""

    places: Sequence[Place] = ()
    cancelled: str | None = None

    @classmethod
    def of(cls, bins: Mapping[str, Any] | None, *, is_named: bool = False) -> Trace | None:
        """Return the trace in these bins; what is damaged in it is left out. None: there is none.

        is_named: whether the message's first place is in its id, and so not in its trace.
        """
        if bins is None:
            return None
        stored, by = bins.get(PLACES), bins.get(CANCELLED)
        texts = [one for one in stored if isinstance(one, str)] if isinstance(stored, Mapping) else []
        places = [_place(found) for text in texts if (found := _PLACE.match(text))]
        return cls(_in_order(places, is_named=is_named), by if isinstance(by, str) else None)


def _place(found: re.Match[str]) -> Place:
    if found[6]:
        return Place(int(found[5]), DELAYED, None, found[7])
    return Place(int(found[1]), found[2], Slot(int(found[3]), int(found[4])))


def _in_order(places: Sequence[Place], *, is_named: bool) -> list[Place]:
    """Return the places by their time. Those of one millisecond in turn: from the queue a message goes elsewhere, as it
    fails, and from there to the queue, as it is tried again.
    """
    ordered = list[Place]()
    for _, some in groupby(sorted(places), key=lambda one: one.at):
        at_once = list(some)
        here = [one for one in at_once if one.side == MAIN]
        away = [one for one in at_once if one.side != MAIN]
        was_here = ordered[-1].side == MAIN if ordered else is_named
        turns = (here, away) if len(here) - was_here >= len(away) else (away, here)
        ordered += [one for turn in zip_longest(*turns) for one in turn if one is not None]
    return ordered


class Places:
    """The traces of the messages of one queue. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str, queue: str, ttl: int) -> None:
        self.store, self.ttl = store, ttl
        self._set, self._queue = f"{client_id}_place_set", quote(queue, safe="")

    def key(self, message_id: str) -> Key:
        """Return the key of a message's trace."""
        return Key(self._set, f"{self._queue}/{message_id}")

    def putting(self, message_id: str, place: str, now_ms: int, *, fresh: bool) -> Update:
        """Return the update that notes a place, and reads who has cancelled the message.

        fresh: it is published now, so that a former cancel does not count.
        """
        put: tuple[Op, ...] = (MapPut(PLACES, f"{now_ms:014d} {place}", 1), MapTrim(PLACES, MOST))
        also: Op = Put(CANCELLED, None) if fresh else Read(CANCELLED)
        return Update(self.key(message_id), (*put, also), exists=Exists.ANY, ttl=self.ttl)

    def asked_again(self, message_ids: Sequence[str]) -> Rows[Any]:
        """Return the rows of `putting` for `cancelled_in`, read once more. One call."""
        return self.store.repeat_many([Update(self.key(one), (Read(CANCELLED),)) for one in message_ids])

    def renewing(self, message_id: str) -> Update:
        """Return the update by which a former cancel of an id does not count; `NotFound` where it has no trace."""
        return Update(self.key(message_id), (Put(CANCELLED, None),))

    def forgetting(self, message_id: str, place: str, now_ms: int) -> Update:
        """Return the update that takes back what `putting` has noted."""
        return Update(self.key(message_id), (MapRemove(PLACES, (f"{now_ms:014d} {place}",)),))

    def marking(self, message_id: str, me: str, *, make: bool) -> Update:
        """Return the update that notes that somebody cancels a message, and reads its places.

        make: also where it has no trace yet.
        """
        ops = (Put(CANCELLED, me), Read(PLACES))
        if make:
            return Update(self.key(message_id), ops, exists=Exists.ANY, ttl=self.ttl)
        return Update(self.key(message_id), ops, exists=Exists.UPDATE)

    def unmarking(self, message_id: str, me: str) -> Update:
        """Return the update that takes such a note back."""
        return Update(self.key(message_id), (Put(CANCELLED, None),), Bound(_MINE, {"me": me}))


def slot_place(side: str, slot: Slot) -> str:
    """Return a slot as a trace names it."""
    return f"{side} {slot_text(slot)}"


def cancelled_in(rows: Sequence[Any]) -> list[int]:
    """Return which of these rows of `Places.putting` say that the message was cancelled."""
    return [n for n, row in enumerate(rows) if type(row) is tuple and row and row[0] is not None]
