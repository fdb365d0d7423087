"""The messages of sharded queues as rows of a table of their own, one row a message.

A record whose set is a queue's data set, and whose key is `{lane}_{pointer}`, stands in `messages`, under a number made
of its lane's and its pointer: so one that is published goes to the end of its lane, and no name is kept with it. The
bins that nearly every message has are columns, and all others are one value in MessagePack. `lanes` has the names; a
lane is never removed. As in `records`, a checksum covers the key and all that the row holds (`seal.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from msgspec import msgpack

from ...errors import Corrupt
from ..local import apply as local
from ..model import values
from ..port import Key
from .seal import NO_RECORD, UNSOUND

SCHEMA = (
    """CREATE TABLE lanes (
        id INTEGER PRIMARY KEY,
        set_name TEXT NOT NULL,
        name TEXT NOT NULL,
        UNIQUE (set_name, name)
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        generation INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        expires INTEGER,
        delivery TEXT,
        fired INTEGER,
        attempts INTEGER,
        enqueued INTEGER,
        modified INTEGER,
        grouped INTEGER,
        kind INTEGER,
        msg_id TEXT,
        seal INTEGER NOT NULL,
        ahead INTEGER,
        more BLOB,
        data BLOB
    )""",
)
BITS = 40
MAX_POINTER = (1 << BITS) - 1
"""The largest pointer that has a number; no lane gets that far."""
TEXT, BYTES = 0, 1
"""The kinds of `data`: what its bytes are."""
_SET, _META, _LANE, _POINTERS = "_data_set", "_meta_set", "_SHARD_", "_POINTERS"
_AROUND = 256
"""Bytes that the names of the bins with columns take at most, and the marks of their types."""
PLAIN = values.encode({"v": 1})
"""All other bins of a message that has nothing but what every message has."""

COLUMNS = (
    "generation, updated, expires, delivery, fired, attempts, enqueued, modified, grouped, kind, msg_id, seal, ahead, "
    "more, data"
)
_PLACES = ", ".join("?" * len(COLUMNS.split(", ")))
ANY = f"SELECT id, {COLUMNS} FROM messages"  # noqa: S608 - names of columns
LOAD = f"{ANY} WHERE id = ?"
LOAD_MANY = f"{ANY} WHERE id IN"
CREATE = f"INSERT INTO messages (id, {COLUMNS}) VALUES (?, {_PLACES})"  # noqa: S608 - names of columns
CREATE_IF_ABSENT = f"{CREATE} ON CONFLICT (id) DO NOTHING"
CHANGE = f"UPDATE messages SET ({COLUMNS}) = ({_PLACES}) WHERE id = ?"  # noqa: S608 - names of columns
REMOVE = "DELETE FROM messages WHERE id = ?"
SETS = f"""SELECT DISTINCT set_name FROM lanes WHERE EXISTS (
    SELECT 1 FROM messages WHERE messages.id BETWEEN lanes.id << {BITS} AND (lanes.id << {BITS}) + {MAX_POINTER}
)"""  # noqa: S608 - numbers
"""The names of the sets that have messages."""
_LANE_OF = "SELECT id FROM lanes WHERE set_name = ? AND name = ?"
_LANE_PAST_THE_INDEX = "SELECT 1 FROM lanes NOT INDEXED WHERE set_name = ? AND name = ?"
_NAME_OF = "SELECT set_name, name FROM lanes WHERE id = ?"
_LANES_OF = "SELECT id, name FROM lanes WHERE set_name = ?"
_NO_KEY = Key("", None)  # type: ignore[arg-type] # of a lane whose name is no text
LAST_AHEAD = "SELECT id, updated FROM messages WHERE id BETWEEN ? AND ? AND ahead = 1 ORDER BY id DESC LIMIT 1"
COUNTED = "UPDATE messages SET ahead = NULL WHERE id BETWEEN ? AND ? AND ahead = 1"
_MAKE_LANE = "INSERT INTO lanes (set_name, name) VALUES (?, ?)"


class Place(NamedTuple):
    """The place of a message: its lane, by name, and its pointer there."""

    set: str
    lane: str
    pointer: int


def place_of(key: Key) -> Place | None:
    """Return the place of a record that stands in `messages`; None for every other."""
    if not key.set.endswith(_SET):
        return None
    lane, _, pointer = key.name.rpartition("_")
    if not (pointer.isdigit() and pointer.isascii() and pointer[0] != "0" and len(pointer) <= 12 and _LANE in lane):
        return None
    number = int(pointer)
    return Place(key.set, lane, number) if number <= MAX_POINTER else None


def number_of(connection: Any, place: Place) -> int | None:
    """Return the number of a message's row; None where its lane has none yet."""
    lane = lane_of(connection, place.set, place.lane)
    return None if lane is None else lane << BITS | place.pointer


def lane_of(connection: Any, set: str, name: str, *, is_new: bool = False) -> int | None:
    """Return the number of a lane; None where it has none yet.

    is_new: whether no message of the lane was counted, so that an index which hides it hides nothing.
    Raises `Corrupt` if the table has the lane and its index has not. Its messages would seem to be absent, and others
    would get their slots.
    """
    lane: int | None = connection.lanes.get((set, name))
    if lane is not None:
        return lane
    lane = _indexed(connection, set, name)
    if lane is None and not is_new and connection.execute(_LANE_PAST_THE_INDEX, (set, name)).fetchone():
        lane = _indexed(connection, set, name)  # it may have been made between the two reads
        if lane is None:
            raise Corrupt(f"an index is damaged and hides the messages of {set}/{name}; `reindex` rebuilds it")
    if lane is not None:
        connection.lanes[set, name] = lane
    return lane


def _indexed(connection: Any, set: str, name: str) -> int | None:
    """Return the number that the index has for a lane."""
    found = connection.execute(_LANE_OF, (set, name)).fetchone()
    return None if found is None or type(found[0]) is not int else found[0]


def made_number(connection: Any, of: Key) -> int:
    """Return the number of a message's row, whose lane gets one if it has none."""
    place = place_of(of)
    assert place is not None  # noqa: S101 - it is a message's
    number = number_of(connection, place)
    if number is not None:
        return number
    lane: int = connection.execute(_MAKE_LANE, (place.set, place.lane)).lastrowid
    return lane << BITS | place.pointer


def key(set: Any, lane: Any, number: int) -> Key:
    """Return the key of the message in a row; one that is no text where its lane's name is damaged."""
    if type(set) is not str or type(lane) is not str:
        return _NO_KEY
    return Key(set, f"{lane}_{number & MAX_POINTER}")


def key_of(connection: Any, number: int) -> Key:
    """Return the key of the message in a row, as `key` does."""
    set, lane = connection.execute(_NAME_OF, (number >> BITS,)).fetchone() or (None, None)
    return key(set, lane, number)


def lane_behind(key: Key) -> tuple[str, str] | None:
    """Return the set and the name of the lane whose messages a shard's record counts; None for any other record."""
    if not (key.set.endswith(_META) and key.name.endswith(_POINTERS) and _LANE in key.name):
        return None
    return key.set[: -len(_META)] + _SET, key.name[: -len(_POINTERS)]


def has_shards(set: str) -> bool:
    """Whether records of shards may stand in this set."""
    return set.endswith(_META)


def pointers_of(key: Key) -> Key:
    """Return the key of the record of the shard that a message is in."""
    return Key(key.set[: -len(_SET)] + _META, key.name.rpartition("_")[0] + _POINTERS)


def lanes_of(connection: Any, set: str) -> list[tuple[Any, int, int]]:
    """Return the lanes of a set: name, and the first and the last number of a message."""
    if not set.endswith(_SET):
        return []
    found = connection.execute(_LANES_OF, (set,)).fetchall()
    return [(name, lane << BITS, lane << BITS | MAX_POINTER) for lane, name in found]


class MessageRow(NamedTuple):
    """The columns of a message's row without its number. Each column of a damaged one may be of any type.

    delivery, fired, attempts, enqueued, modified, msg_id: the bins `delivery`, `fireTS`, `attempts`, `enqueuedAt`,
        `modified_at` and `msgId`, if they are text or integers.
    grouped: 1 if there is a bin `groups`: others than its delivery may wait for the message.
    ahead: 1 of a message that was published in one step, so that its shard's record may not count its slot yet; the
        store adds it (`rows.py`). No part of the record.
    kind, data: the bin `data` as bytes, if it is text or bytes.
    more: all other bins; None = there are none.
    """

    generation: int
    updated: int
    expires: int | None
    delivery: str | None
    fired: int | None
    attempts: int | None
    enqueued: int | None
    modified: int | None
    grouped: int | None
    kind: int | None
    msg_id: str | None
    seal: int
    ahead: int | None
    more: bytes | None
    data: bytes | None

    def opened(self, key: Key, bins: Collection[str] = (), *, rest: bool = False) -> local.Stored:  # noqa: ARG002 - all are read
        """Return the record of the row, with all bins. Raises `Corrupt`, without the content."""
        if type(key.name) is not str:
            raise Corrupt(NO_RECORD)
        lane, _, pointer = key.name.rpartition("_")
        there = bins_of(lane_seal(key.set, lane), int(pointer), self)
        size = len(self.data or b"") + len(self.more or b"") + 4 * len((self.msg_id or "") + (self.delivery or ""))
        return local.Stored(there, self.generation, self.updated, self.expires, size + _AROUND)


_ENCODER = msgpack.Encoder()
HEAD = MessageRow._fields.index("seal")
"""How many columns come before the checksum."""


@lru_cache(maxsize=4096)
def lane_seal(set: str, lane: str) -> int:
    """Return the beginning of the checksum of each message of a lane."""
    return crc32(f"{set}\0{lane}\0".encode(errors="surrogateescape"))


def checksum(lane: int, pointer: int, head: tuple[Any, ...], more: bytes | None, data: bytes | None) -> int:
    """Return the checksum of a row. The columns of its head count with their types.

    lane: what `lane_seal` has returned.
    """
    return crc32(data or b"", crc32(more or b"", crc32(_ENCODER.encode((pointer, *head)), lane)))


def bins_of(lane: int, pointer: int, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the bins in a row. Raises `Corrupt`, without the content."""
    *_, seal, _, more, data = row
    if (more is not None and type(more) is not bytes) or (data is not None and type(data) is not bytes):
        raise Corrupt(NO_RECORD)
    head = row[:HEAD]
    try:
        expected = checksum(lane, pointer, head, more, data)
    except (OverflowError, UnicodeError):  # of text that is no UTF-8
        raise Corrupt(UNSOUND) from None
    if seal != expected:
        raise Corrupt(UNSOUND)
    _, _, _, delivery, fired, attempts, enqueued, modified, _, kind, msg_id = head
    there: dict[str, Any] = {"v": 1} if more == PLAIN else {} if more is None else values.decode(more)
    if data is not None:
        there["data"] = data if kind == BYTES else data.decode()
    if msg_id is not None:
        there["msgId"] = msg_id
    if attempts is not None:
        there["attempts"] = attempts
    if enqueued is not None:
        there["enqueuedAt"] = enqueued
    if modified is not None:
        there["modified_at"] = modified
    if delivery is not None:
        there["delivery"] = delivery
    if fired is not None:
        there["fireTS"] = fired
    return there


def sealed(key: Key, record: local.Stored) -> MessageRow:
    """Return the row of a record."""
    rest = record.bins.copy()

    def column(bin: str, kind: type) -> Any:
        return rest.pop(bin) if type(rest.get(bin)) is kind else None

    kind, data = None, None
    if type(rest.get("data")) is bytes:
        kind, data = BYTES, rest.pop("data")
    elif type(rest.get("data")) is str:
        kind, data = TEXT, rest.pop("data").encode()
    head = (
        record.generation, record.updated, record.expires, column("delivery", str), column("fireTS", int),
        column("attempts", int), column("enqueuedAt", int), column("modified_at", int), 1 if "groups" in rest else None,
        kind, column("msgId", str),
    )  # fmt: skip
    lane, _, pointer = key.name.rpartition("_")
    more = values.encode(rest) if rest else None
    return MessageRow(*head, checksum(lane_seal(key.set, lane), int(pointer), head, more, data), None, more, data)


def unsound(data: Any) -> MessageRow:
    """Return the row of a message that was damaged before it came here: reading it fails."""
    kept = data if type(data) is bytes else None
    return MessageRow(0, 0, None, None, None, None, None, None, None, None, None, _NO_SEAL, None, None, kept)


_NO_SEAL = -1
"""No checksum, which is at least 0."""
