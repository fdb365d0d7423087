"""Making a group and dropping it, in steps that any process may repeat and continue (docs/protocols P17)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from ....errors import AlreadyExists, Corrupt, InvalidRequest, LatchworkError, NotFound, Refused, Unreadable
from ....inputs import is_int
from ....logs import Log
from ....plain import shown
from ....store import (
    NEVER,
    Add,
    Bin,
    Exists,
    Key,
    MapGet,
    MapPut,
    MapRemove,
    Param,
    Put,
    Read,
    Record,
    Removal,
    Update,
    has,
    lacks,
    missing,
)
from ....store.decode import MAX_COUNTER, damaged
from ....store.model.expr import Bound, MapSize
from ....store.model.record import Row
from ....store.rows import chunked
from ...rows import read_each
from ..config import QueueConfig
from ..delayed.entries import DelayedMessages
from ..pointers import FIRE, KNOWN, LOAD, MAX_UNFIRED
from ..record import QueueRecords, lifetime
from ..rules import GROUPS
from ..shards import Shards
from ..slots import Slot
from .pointers import FIRST, JOINED, GroupPointers, SharedPointers, counted
from .stamps import releasing

log = Log(__name__)

STEP = 1_000
"""Messages that are read, or released, in one call."""
BUDGET = 100_000
"""Slots of one shard that a call of `end` looks at, at most: damaged pointers may say that there are ten thousand times
as many, and the upkeep must get to the other queues.
"""
MOST_GROUPS = 100
"""Groups of a queue: each message names those that it waits for."""
MADE, DROPPED = "made", "dropped"
LEFT = "dropTo"
"""LOAD of each shard when the group left it, where one call was not enough to drop it."""
Start = str | datetime
_TAG = Bin("tag", str).eq(Param("tag", str))
_UNMADE = _TAG & missing(MADE) & missing(DROPPED)


def checked_start(start: Start) -> Start:
    """Return where a group is to begin. Raises `InvalidRequest`."""
    if isinstance(start, datetime) and start.tzinfo is not None:
        return start
    if not isinstance(start, str) or start not in ("oldest", "now"):
        raise InvalidRequest(f"start is {shown(start)}; it must be 'oldest', 'now' or a datetime with a time zone")
    return start


def complete(
    records: QueueRecords, config: QueueConfig, shared: SharedPointers, start: Start, oldest: Sequence[int]
) -> bool:
    """Do what is left of making a group whose record is there; False if it was dropped meanwhile.

    oldest: for each shard the pointer up to which nothing is waited for. Four calls; for a time a call more for each
        1,000 messages that were published before it. Raises `Refused` where the queue has as many groups as it may
        have.
    """
    joined = _join(shared)
    if joined is None:
        guard = Bound(_UNMADE, {"tag": config.tag})
        with suppress(Refused, NotFound):  # another process has made it, or is here too
            records.store.delete(records.key(config.name), when=guard, repeatable=True)
            leave(shared)
        raise Refused(f"queue {config.of!r} has {MOST_GROUPS} groups, the most that it may have: drop some")
    first = _first(shared, start, joined, oldest)
    rows = []
    for n, (at, after) in enumerate(zip(joined, first, strict=True)):
        # With such a record a sweep begins where it says, not where it begins with a shard that it has never seen.
        begin = (Put(LOAD, at), Put(FIRE, after), Put(JOINED, at), Put(FIRST, after), Put(KNOWN, 1))
        rows.append(Update(shared.pointers_key(n), begin, exists=Exists.CREATE, ttl=NEVER))
    # Not as if it was dropped: to leave would undo what another process has made meanwhile.
    shared.store.repeat_many(rows).raise_unless(AlreadyExists)
    # Another process may have made some of them, and begun in another place.
    found = shared.store.get_many([shared.pointers_key(n) for n in range(shared.shards)], FIRST)
    begun = {str(n): counted(record.bins.get(FIRST)) for n, record in enumerate(found) if record}
    if len(begun) == shared.shards and _made(records, config, begun):
        return True
    leave(shared)
    return False


def _made(records: QueueRecords, config: QueueConfig, begun: Mapping[str, int]) -> bool:
    """Note that the group is made; whether it is."""
    guard = Bound(_UNMADE, {"tag": config.tag})
    ops = (Put("sharedSweep", begun), Put(MADE, 1))
    try:
        records.store.operate(records.key(config.name), *ops, when=guard, ttl=lifetime(config), repeatable=True)
    except (Refused, NotFound):
        bins = _bins(records, config.name, "tag", MADE, DROPPED)
        return bins.get("tag") == config.tag and MADE in bins and DROPPED not in bins
    return True


def _bins(records: QueueRecords, name: str, *bins: str) -> Mapping[str, Any]:
    record = records.find(name, *bins)
    return record.bins if record else {}


def _join(shared: SharedPointers) -> list[int] | None:
    """Enter the group into all shards: whatever is reserved from now on names it. LOAD then; None where a shard has no
    room for one more group. One call or two.
    """
    ops = (Add(LOAD, 0), Add(FIRE, 0), MapPut(GROUPS, shared.tag, Bin(LOAD)), MapGet(GROUPS, shared.tag))
    keys = [shared.queue_key(n) for n in range(shared.shards)]
    guard = lacks(GROUPS, shared.tag) & (missing(GROUPS) | (MapSize(GROUPS) < MOST_GROUPS))
    rows = shared.store.repeat_many([Update(key, ops, guard, Exists.ANY, or_absent=True, ttl=NEVER) for key in keys])
    again = [key for key, row in zip(keys, rows, strict=True) if isinstance(row, Refused)]
    before = dict(zip(again, shared.store.get_many(again, GROUPS), strict=True))
    joined = []
    for key, row in zip(keys, rows, strict=True):
        record = before.get(key)
        there = record.bins.get(GROUPS) if record else None
        if isinstance(there, Mapping) and shared.tag in there:
            joined.append(_checked(key, there[shared.tag]))
        elif isinstance(row, Refused) and len(_map(there)) >= MOST_GROUPS:
            return None
        elif isinstance(row, LatchworkError):
            raise row
        else:
            joined.append(_checked(key, row[0]))
    return joined


def _checked(key: Key, at: Any) -> int:
    if not is_int(at) or not 0 <= at <= MAX_COUNTER:
        raise damaged(key, f"bin {GROUPS!r} has no pointer for a group")
    return int(at)


def _first(shared: SharedPointers, start: Start, joined: Sequence[int], oldest: Sequence[int]) -> list[int]:
    """Return for each shard the pointer after which the group begins."""
    if start == "now":
        return list(joined)
    if not isinstance(start, datetime):
        return [min(pair) for pair in zip(oldest, joined, strict=True)]
    since = round(start.timestamp() * 1000)
    return [_published_since(shared, n, oldest[n], joined[n], since) for n in range(shared.shards)]


def _published_since(shared: SharedPointers, shard: int, after: int, last: int, since: int) -> int:
    """Return the pointer before the first message that was published then or later, by its publisher's clock.

    Raises `Corrupt` where more slots were reserved than can hold messages.
    """
    if last - after > MAX_UNFIRED:
        raise damaged(shared.queue_key(shard), f"{LOAD} is {last}, and nothing up to slot {after} is waited for")
    for step in chunked(range(after + 1, last + 1), STEP):
        records = read_each(shared.store, [shared.key(Slot(shard, pointer)) for pointer in step], "enqueuedAt")
        for pointer, record in zip(step, records, strict=True):
            date = record.bins.get("enqueuedAt") if isinstance(record, Record) else None  # damaged: of no time
            if isinstance(date, int) and date >= since:
                return pointer - 1
    return last


def leave(shared: SharedPointers) -> list[int]:
    """Take the group out of all shards: nothing is published to it, nor claimed for it, from now on. Two calls.

    For each shard LOAD at that moment.
    """
    ops = (MapRemove(GROUPS, (shared.tag,)), Read(LOAD))
    rows = shared.store.repeat_many([Update(shared.queue_key(n), ops) for n in range(shared.shards)])
    ends = [counted(load) for (load,) in rows.raise_unless(NotFound).values((0,))]
    _delete(shared, [shared])
    return ends


def end(
    records: QueueRecords,
    config: QueueConfig,
    pointers: GroupPointers,
    others: Sequence[Shards],
    delayed: DelayedMessages,
) -> bool:
    """Drop a group, or go on with that where it stopped; whether it is over. False: the group's record says how far it
    came, for the next call.

    delayed: what it put off; each such message names the group's tag, so no other group gets it.

    Seven calls, and one to three per 1,000 messages that it had left, up to 100,000 slots of each shard.

    Raises `NotFound` if it does not exist, or was made again.
    """
    key, guard = records.key(config.name), Bound(_TAG, {"tag": config.tag})
    try:
        noted, swept = records.store.operate(
            key, Put(DROPPED, 1), Read(LEFT), Read("sharedSweep"), when=guard, ttl=lifetime(config), repeatable=True
        )
    except (Refused, NotFound):
        raise _dropped(config) from None
    delayed.tag_control()  # now, as no other group has the name yet: at the end the record is removed by its tag
    ends, reached = _ends(noted, leave(pointers.shared)), []
    for shard, last in enumerate(ends):
        after = counted(swept.get(str(shard)) if isinstance(swept, dict) else 0)
        if last - after > MAX_UNFIRED:  # the pointers are damaged: the group's messages are left to expire
            log.error("the group %r leaves messages in shard %d, whose pointers are damaged", config.name, shard)
            after = last
        reached.append(min(last, after + BUDGET))
        for step in chunked(range(after + 1, reached[shard] + 1), STEP):
            _release(pointers.shared, [Slot(shard, pointer) for pointer in step])
    if any(to < last for to, last in zip(reached, ends, strict=True)):
        progress = (Put("sharedSweep", _by_shard(reached)), Put(LEFT, _by_shard(ends)))
        records.store.repeat_many([Update(key, progress, guard, ttl=lifetime(config))]).raise_unless(NotFound, Refused)
        return False
    _delete(pointers.own, [pointers.own, *others], delayed.removing_control())
    records.store.repeat_many([Update(key, (Put("active", "false"),), guard)])
    with suppress(Refused):  # the group was made again since
        records.store.delete(key, when=guard, repeatable=True)
    return True


def _ends(noted: Any, now: Sequence[int]) -> Sequence[int]:
    """Return for each shard the last slot that may hold a message for the group.

    noted: what an earlier call has noted, which counts, as others have published since.
    now: LOAD now.
    """
    ends: list[Any] = [noted.get(str(shard)) for shard in range(len(now))] if isinstance(noted, Mapping) else []
    return ends if ends and all(is_int(end) and 0 <= end <= MAX_COUNTER for end in ends) else now


def _by_shard(pointers: Sequence[int]) -> dict[str, int]:
    return {str(shard): pointer for shard, pointer in enumerate(pointers)}


def check_there(records: QueueRecords, config: QueueConfig) -> None:
    """Raise `NotFound` if the group was dropped, or made again under another tag. One call."""
    bins = _bins(records, config.name, "tag", DROPPED)
    if bins.get("tag") != config.tag or DROPPED in bins:
        raise _dropped(config)


def was_dropped(records: QueueRecords, config: QueueConfig, shared: SharedPointers, made_at: Any) -> bool:
    """Whether a group without a record was dropped; False where the store has lost the record. Two calls.

    A drop leaves the queue as it was, and no shard of it that names the group. A store that came back empty has no
    record of the queue, or one that was made later.

    made_at: the time (ms, server) at which the group's record was created.
    """
    queue = records.find(config.of, "createdAt")
    since = queue.bins.get("createdAt") if queue else None
    if not is_int(since) or not is_int(made_at) or since > made_at:
        return False
    shards = read_each(shared.store, [shared.queue_key(n) for n in range(shared.shards)], GROUPS)
    return all(isinstance(one, Record) and shared.tag not in _map(one.bins.get(GROUPS)) for one in shards)


def _map(stored: Any) -> Mapping[Any, Any]:
    return stored if isinstance(stored, Mapping) else {}


def _dropped(config: QueueConfig) -> NotFound:
    return NotFound(f"there is no group {config.name!r} any more: it was dropped")


def without_record(records: QueueRecords, queue: Shards, tags: Collection[str]) -> dict[str, bool]:
    """Return the groups of these tags that have no record, each with whether another group has its name now.

    A group's record is there before it joins. So if it is not found after that, it has expired, or the store has lost
    it, or the maker woke too late. A record that cannot be read is there. One call, none without tags.
    """
    if not tags:
        return {}
    names = {tag: f"{queue.name}@{tag.rpartition('~')[0]}" for tag in sorted(tags)}
    found = read_each(records.store, [records.key(name) for name in names.values()], "tag")
    return {
        tag: record is not None
        for tag, record in zip(names, found, strict=True)
        if record is None or (isinstance(record, Record) and record.bins.get("tag") != tag)
    }


def forget_dead(queue: Shards, tag: str) -> None:
    """Take a group whose record is not there out of a queue's shards. Two calls."""
    log.warning("the group %r of queue %r has no record and was never dropped: nothing waits for it", tag, queue.name)
    leave(SharedPointers(queue.store, queue.client_id, queue.name, tag, queue.shards, ttl=queue.ttl, sweep=queue.sweep))


def _release(shared: SharedPointers, slots: Sequence[Slot]) -> None:
    """Remove the group from these messages; a message that waits for nobody is deleted.

    Also one that does not name the group any more: an earlier attempt may have removed the group and died before it
    deleted the message, and the sweeps of all other readers may have passed it since.

    A message that cannot be read stays until it expires: the others, and the group's name, do not wait for it.
    """
    form = releasing(shared.tag)
    rows = shared.store.repeat_many([Update(shared.key(slot), form, has(GROUPS, shared.tag)) for slot in slots])
    for failure in rows.raise_unless(NotFound, Refused, Corrupt, Unreadable).errors():
        if isinstance(failure, Corrupt | Unreadable):
            log.warning("the group %r leaves a message that cannot be read: %s", shared.tag, failure)
    shared.readers.finish([slot for slot, row in zip(slots, rows, strict=True) if _may_be_done(row)])


def _may_be_done(row: Row) -> bool:
    return isinstance(row, Refused) or row == (0,)


def _delete(first: Shards, queues: Iterable[Shards], *others: Removal) -> None:
    removals = [Removal(queue.pointers_key(n)) for queue in queues for n in range(queue.shards)]
    rows = first.store.delete_many([*removals, *others], repeatable=True)
    rows.raise_unless(Refused, Corrupt, Unreadable)  # another group's control record stays, and a damaged one
