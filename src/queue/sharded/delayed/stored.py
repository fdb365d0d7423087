"""The records of delayed messages as they are read, whatever is stored in them (docs/protocols P16).

A bin that is damaged does not hide the message: it is read as if it were missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from ....coord.effects.attempts import Condition
from ....inputs import is_int
from ....store.decode import MAX_COUNTER
from ..envelope import BINS, MAX_ID, MAX_TIME, Envelope, from_bins, storable
from ..slots import Slot

MAX_NAME = MAX_ID + 96
"""Characters of an entry's id: that of a message that was put off has its attempts, its delivery's id and its slot."""
IF, SURE = "if", "sure"
"""The condition that a message waits for, and whether that has come true."""
ENTRY = (*BINS, "due", "by", "shard", "moving", "cancelled", "group", IF, SURE)
"""The bins of an entry that are read."""
NEW = "-"
"""Stands for the attempts in the name of an entry whose message came from another queue: here it has had none."""
MOVED = "moved "
"""What `cancelled` begins with where a message was moved, or is over, and not cancelled."""
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry.

    message: None if only a cancelled one, or one that is damaged, is left.
    due: ms by the server's clock, 0 = damaged.
    by: the attempt that made it, which ends with the entry's number among all of its process.
    shard: of the message's key, -1 = any.
    moving: whether it is on its way.
    cancelled: by whom, None = not; or that it was moved.
    group: the tag of the group that put it off, None = of a queue.
    batch: its place in a batch, also of one that was cancelled.
    condition: the update that it goes with (P28), None = none, or it is damaged.
    unsure: whether it is not known yet that this was applied.
    """

    message: Envelope | None
    due: int
    by: str
    shard: int
    moving: bool
    cancelled: str | None
    group: str | None
    batch: str | None
    condition: Condition | None
    unsure: bool

    @classmethod
    def of(cls, bins: Mapping[str, Any]) -> Entry:
        """Return the entry in these bins."""
        due, shard, cancelled = bins.get("due", 0), bins.get("shard", -1), bins.get("cancelled")
        return cls(
            from_bins(bins),
            due if is_int(due) and 0 <= due <= MAX_TIME else 0,
            _text(bins.get("by")) or "",
            shard if is_int(shard) and shard >= 0 else -1,
            "moving" in bins,
            None if cancelled is None else _text(cancelled) or "",
            _text(bins.get("group")),
            _text(bins.get("batch"), longest=10 * MAX_NAME),
            Condition.of(bins.get(IF)),
            IF in bins and SURE not in bins,
        )

    @property
    def moved(self) -> bool:
        """Whether its message went to the queue, or is over, and only that is left to be read here."""
        return self.cancelled is not None and self.cancelled.startswith(MOVED)

    def waits(self, group: str | None) -> bool:
        """Whether it is delivered once it is due. group: the tag of the group, if it is one's."""
        return self.message is not None and not self.moving and self.cancelled is None and self.is_of(group)

    def is_over(self, life: timedelta, now: int) -> bool:
        """Whether its life, which begins when it is due, had ended by this time of the server, in ms, and nobody had
        begun to deliver it. Not of one that waits for its update (P28), whose record has to be asked.
        """
        waits = bool(self.due) and not self.moving and not self.unsure
        return waits and self.due + life.total_seconds() * 1000 < now

    def is_of(self, group: str | None) -> bool:
        """Whether it is of this group, and not of one that had its name before and was dropped."""
        return self.group in (None, group)

    @property
    def place(self) -> tuple[str, int]:
        """The call that stored it, and its number."""
        call, _, number = self.by.rpartition(".")
        return call, int(number) if number.isascii() and number.isdigit() and len(number) < 19 else 0


class LastRetry(NamedTuple):
    """The message that failed last and is tried again.

    due: when, in ms since the epoch by the server's clock.
    error: the begin of the error, or the reason if there was none.
    """

    due: int
    message_id: str
    error: str


class Unsettled(NamedTuple):
    """A message that goes with an update of a record, of which it is not known yet whether it was applied (P28).

    since: when the message was stored, in ms since the epoch by the server's clock.
    record: the record, and why it could not say.
    """

    message_id: str
    since: int
    record: str


class Waiting(NamedTuple):
    """What waits in a queue's delayed messages.

    messages: how many, roughly.
    late: seconds by which the delivery of what is due is behind: a few, while a process does the upkeep.
    retrying: how many of them have failed and are tried again, roughly.
    unsettled: those that wait for their update for more than a minute, the oldest first; at most 20.
    is_damaged: whether the numbers are not known, as their record is damaged: then they are 0.
    expired: how many have expired before they could be delivered, roughly; expired_at: when the last of these was
        dropped, in ms by the server's clock, 0 = none was.
    """

    messages: int = 0
    late: float = 0.0
    retrying: int = 0
    last_retry: LastRetry | None = None
    unsettled: tuple[Unsettled, ...] = ()
    is_damaged: bool = False
    expired: int = 0
    expired_at: int = 0


def name_of_retry(message_id: str, attempts: int, delivery: str, slot: Slot) -> str:
    """Return the name of the entry of a message that was handed out, which has its id from its publisher already.

    Two messages of one id that were received together have one delivery: their slots tell them apart.
    """
    return f"{message_id}#{attempts}#{delivery}~{slot.shard}.{slot.pointer}"


def name_elsewhere(name: str, message_id: str, *, known: bool) -> str:
    """Return the name that the entry of this name gets in another queue, where its message has no attempts.

    known: whether the groups of that queue have had the message: then the name is one that `was_handed_out` takes.
    """
    before = f"{message_id}#"
    if not name.startswith(before):  # it was never handed out: its name is its id
        return name
    _, _, delivery = name.removeprefix(before).partition("#")
    return f"{before}{0 if known else NEW}#{delivery}"


def was_handed_out(name: str, message: Envelope) -> bool:
    """Whether the entry of this name is of a message that was handed out in this queue, also one whose attempt was
    taken back, as it was not begun. Not of one that has failed and was replaced since: that starts again.
    """
    return name.startswith(f"{message.msg_id}#{message.attempts}#")


def published_id(name: str) -> str:
    """Return the id of the message whose entry has this name: the name itself, unless it was handed out before."""
    id, *rest = name.rsplit("#", 2)
    return id if len(rest) == 2 and (rest[0] == NEW or rest[0].isdecimal()) and "@" in rest[1] else name


def is_retry(name: str) -> bool:
    """Whether the entry of this name is of a message that has failed; a publisher may have given such an id, too."""
    parts = name.rsplit("#", 2)
    return len(parts) == 3 and parts[1].isascii() and parts[1].isdigit() and parts[1] != "0"


def last_retry_in(stored: Any) -> LastRetry | None:
    """Return what a control record says of the message that failed last; None for what cannot be that."""
    if not isinstance(stored, list) or len(stored) != len(LastRetry._fields):
        return None
    due, message_id, error = stored
    if not (is_int(due) and 0 < due <= MAX_TIME and isinstance(message_id, str) and isinstance(error, str)):
        return None
    return LastRetry(due, message_id, error)


def unsettled_in(stored: Any) -> tuple[Unsettled, ...]:
    """Return what a control record says of messages that wait for their update, without what cannot be that."""
    found = [
        Unsettled(name, *what)
        for name, what in (stored.items() if isinstance(stored, Mapping) else ())
        if isinstance(what, list) and len(what) == 2 and is_int(what[0]) and isinstance(what[1], str) and _text(name)
    ]
    return tuple(sorted(found, key=lambda one: one.since))


def in_order(found: Mapping[str, Entry]) -> list[str]:
    """Return the names of entries in the order in which they are delivered: by their time, and as they were published.

    The messages of one call are due at one moment, give or take the few milliseconds in which the server, or each of
    several, stores them: they keep the order in which they were given.
    """
    latest: dict[str, int] = {}
    moments: dict[str, tuple[int, int]] = {}
    for name in sorted(found, key=lambda one: found[one].place[1]):
        call, number = found[name].place
        latest[call] = max(latest.get(call, 0), found[name].due)
        moments[name] = latest[call], number
    return sorted(moments, key=moments.__getitem__)


def ids_in(stored: Any) -> list[str]:
    """Return the ids in a bucket's record, without what cannot be one."""
    return [one for one in stored if _text(one)] if isinstance(stored, Mapping) else []


def brought_in(stored: Any) -> dict[str, list[str]] | None:
    """Return the ids that were brought and not counted, by the record of their bucket; None for what cannot be that."""
    if not isinstance(stored, Mapping) or not all(_text(place) for place in stored):
        return None
    return {
        place: [one for one in some if _text(one)] if isinstance(some, list) else [] for place, some in stored.items()
    }


def horizon_in(stored: Any, now: int) -> int | None:
    """Return the horizon of a control record; None for what cannot be one, as it is far ahead of the server's time."""
    return int(stored) if is_int(stored) and 0 <= stored <= min(now + DAY_MS, MAX_COUNTER) else None


def waiting_in(came: Any, went: Any) -> int:
    """Return how many messages wait by the counts of a control record; 0 where these are damaged."""
    return max(0, came - went) if is_int(came) and is_int(went) else 0


def _text(stored: Any, longest: int = MAX_NAME) -> str | None:
    """Return the text, if a name or a token can be like this."""
    return stored if isinstance(stored, str) and 0 < len(stored) <= longest and storable(stored) == stored else None
