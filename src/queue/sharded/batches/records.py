"""The records of a queue's batches: how many messages each has, who publishes into it, and its end (P18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from msgspec import Meta, Struct

from ....errors import AlreadyExists, Corrupt, LatchworkError, NotFound, OutcomeUnknown, Refused, Unreadable
from ....inputs import is_int
from ....store import (
    NEVER,
    Add,
    Bin,
    Exists,
    Key,
    MapPut,
    MapRemove,
    Param,
    Put,
    Read,
    Record,
    RecordStore,
    Update,
    exists,
    missing,
)
from ....store.decode import Counter, damaged, decoded
from ....store.model.expr import SERVER_NOW, Bound, Expr, ListOf, MapSize, MapValue, has, lacks
from ....store.model.ops import Op
from ....store.port import MAX_TTL
from ....store.rows import chunked
from ...rows import read_each, readable
from .blocks import BLOCK, OUT, STEP, BatchPlace, Block, Blocks, Counts, batch_id
from .counting import Names, names_key

T = TypeVar("T", bound=Struct)

MAX_NAME = 128
"""Characters in the name of a batch."""
MAX_MESSAGES = 1_000_000_000
"""Ordinals that a batch can have given out; if its record says more it is damaged, and counting them would take hours.
"""
MOST = 1_000
"""Batches of a queue that have not ended; also calls that publish into one batch at one moment."""
FORGOTTEN = 3_600_000
"""Milliseconds by the server's clock after which a name without a record is no batch that is being made."""
NAMES = "names"

_SAME = Bin("tag", str).eq(Param("tag", str))
_OPEN = _SAME & missing("closed")
_ME = Param("me", str)
_FEW = missing("open") | (MapSize("open") < MOST)
_MAY_BEGIN = _OPEN & lacks("open", _ME) & _FEW
_MAY_END = _OPEN & has("open", _ME)
_MAY_FOLLOW = _SAME & missing("cancelled")
_MAY_CANCEL = _SAME & missing("ending") & missing("ended")
_IS_ENDING = exists("ending") & missing("ended")
_SPAN = ListOf((Bin("next"), Param("n")))
_LISTED = missing(NAMES) | (MapSize(NAMES) < MOST) | has(NAMES, Param("name", str))
_AS_LISTED = has(NAMES, Param("name", str)) & MapValue(NAMES, Param("name", str)).eq(Param("since"))
_FORGOTTEN = _AS_LISTED & (Param("since") + FORGOTTEN < SERVER_NOW)


class _Stored(Struct, frozen=True):
    """The bins of a batch's record."""

    tag: str
    life: Annotated[int, Meta(ge=1, le=MAX_TTL)]
    next: Annotated[int, Meta(ge=0, le=MAX_MESSAGES)]
    open: dict[str, tuple[int, int]] = {}
    then: dict[str, Any] | None = None
    on_parked: dict[str, Any] | None = None
    told: Counter = 0
    closed: Counter = 0
    settled: int = 0
    ended: Counter = 0
    cancelled: Counter = 0

    def spans(self) -> dict[str, range]:
        """Return the ordinals of calls that publish. Raises `ValueError` where they cannot have been given out."""
        spans = {call: range(end - n, end) for call, (end, n) in self.open.items() if 0 < n <= end <= self.next}
        if len(spans) < len(self.open) or sum(map(len, spans.values())) > self.next:
            raise ValueError("has ordinals that were not given out")
        return spans


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch as it was read.

    given: ordinals that were given out.
    open: the ordinals of calls that publish, by call.
    then: the follow-up.
    on_parked: what is published once one of its messages is parked.
    told: whether that was published.
    closed, ended, cancelled: ms by the server's clock, 0 = not.
    settled: nothing of what was open counts any more.
    """

    name: str
    tag: str
    life: int
    given: int
    open: Mapping[str, range] = field(default_factory=dict)
    then: Mapping[str, Any] | None = None
    on_parked: Mapping[str, Any] | None = None
    told: bool = False
    closed: int = 0
    settled: bool = False
    ended: int = 0
    cancelled: int = 0

    @property
    def complete(self) -> bool:
        """Whether no ordinal is given out any more, nor counts later."""
        return bool(self.closed) and (self.settled or not self.open)

    def is_open(self, ordinal: int) -> bool:
        """Whether the call that publishes an ordinal has not ended: it may have died."""
        return any(ordinal in span for span in self.open.values())


class BatchRecords:
    """The batches of one queue. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str, queue: str) -> None:
        self.store, self.queue = store, queue
        self.blocks = Blocks(store, client_id)
        self._client_id, self._set, self._queue = client_id, f"{client_id}_batch_set", quote(queue, safe="")

    @property
    def index(self) -> Key:
        """The key of the record with the names of all batches that have not ended."""
        return Key(self._set, f"I/{self._queue}")

    def key(self, name: str) -> Key:
        """Return the key of a batch."""
        return Key(self._set, f"B/{self._queue}/{quote(name, safe='')}")

    def place(self, state: BatchState, ordinal: int) -> BatchPlace:
        """Return the place of a message."""
        return BatchPlace(batch_id(self.queue, state.name, state.tag), state.life, ordinal)

    # ---- made, found

    def make(
        self, name: str, then: Mapping[str, Any] | None, life: int, on_parked: Mapping[str, Any] | None = None
    ) -> BatchState:
        """Make the batch, or find it. One call, two if it exists. Raises `Refused` if there are too many."""
        tag = self.store.seams.unique()
        bins = {"tag": tag, "life": life, "next": 0, "then": then, "on_parked": on_parked}
        create = tuple(Put(bin, value) for bin, value in bins.items() if value is not None)
        rows = self.store.repeat_many(
            [self._listing(name), Update(self.key(name), create, exists=Exists.CREATE, ttl=life)]
        )
        if isinstance(rows[0], Refused):
            raise Refused(f"queue {self.queue!r} has {MOST} batches that have not ended: close some, or wait")
        rows.raise_unless(AlreadyExists)
        if isinstance(rows[1], AlreadyExists):
            return self.read(name)
        return BatchState(name, tag, life, 0, then=then, on_parked=on_parked)

    def read(self, name: str, tag: str | None = None) -> BatchState:
        """Return the batch; `tag`: this very one. One call. Raises `NotFound`, `Corrupt`."""
        record = self.store.get(self.key(name))
        if record is None or tag not in (None, record.bins.get("tag")):
            raise self._gone(name)
        return self.state(name, record.bins)

    def look(
        self, state: BatchState, number: int
    ) -> tuple[BatchState, Block | LatchworkError, Mapping[int, str] | LatchworkError]:
        """Return the batch as it is now, one of its blocks, and the ids of the messages there; in place of these two
        the error of a record that cannot be read. One call. Raises `NotFound`, `Corrupt`.
        """
        batch = self.place(state, 0).batch
        block, names = self.blocks.key(batch, number), names_key(self._client_id, batch, number)
        record, *parts = read_each(self.store, [self.key(state.name), block, names])
        if isinstance(record, LatchworkError):
            raise record
        if record is None or record.bins.get("tag") != state.tag:
            raise self._gone(state.name)
        now = self.state(state.name, record.bins)
        return now, _part(Block, block, parts[0]), _ids(_part(Names, names, parts[1]))

    def state(self, name: str, bins: Mapping[str, Any]) -> BatchState:
        """Return the batch in these bins. Raises `Corrupt`."""
        stored = decoded(_Stored, self.key(name), bins)
        try:
            spans = stored.spans()
        except ValueError as wrong:
            raise damaged(self.key(name), f"bin 'open' {wrong}") from None
        return BatchState(
            name, stored.tag, stored.life, stored.next, spans, stored.then, stored.on_parked, bool(stored.told),
            stored.closed, bool(stored.settled), stored.ended, stored.cancelled,
        )  # fmt: skip

    def names(self) -> dict[str, int]:
        """Return the batches that have not ended, and when each was listed last (ms, server). One call."""
        record = self.store.get(self.index, NAMES)
        return names_in(record.bins if record else {})

    def states(self) -> list[BatchState]:
        """Return the batches that have not ended, by name. Two calls.

        One whose record is damaged is left out, with a warning that names the record.
        """
        names = sorted(self.names())
        records = read_each(self.store, [self.key(name) for name in names])
        found = records.then(lambda read: [self._state_of(names[n], record) for n, record in read.items()])
        return [state for state in readable(found) if state is not None and not state.ended]

    def _state_of(self, name: str, record: Record | None) -> BatchState | Corrupt | None:
        try:
            return self.state(name, record.bins) if record else None
        except Corrupt as failure:
            return failure

    # ---- published into

    def begin(self, state: BatchState, n: int) -> tuple[str, range]:
        """Give out `n` ordinals to a call that publishes; its name, and which they are. One call.

        Raises `Refused` once the batch is closed, or where too many publish at this moment; `NotFound`.
        """
        me = self.store.seams.unique()
        ops = (Add("next", n), MapPut("open", me, Bound(_SPAN, {"n": n})), Read("next"))
        guard = Bound(_MAY_BEGIN, {"tag": state.tag, "me": me})
        try:
            (end,) = self.store.operate(self.key(state.name), *ops, when=guard, repeatable=True)
        except (Refused, NotFound) as failure:
            try:
                now = self.read(state.name, state.tag)
            except LatchworkError as other:
                if failure.details.get("doubt"):
                    raise OutcomeUnknown(f"batch {state.name!r}: {other}; nothing was published") from other
                raise
            if me in now.open:  # an attempt whose reply was lost
                return me, now.open[me]
            raise self._refused(now) from None
        return me, range(end - n, end)

    def confirm(self, state: BatchState, me: str) -> None:
        """Let the messages of a call count from now on. One call. Raises `Refused` if the batch was closed before.

        A repeat after a lost reply is refused, and finds that the call is not listed any more: only its own
        confirmation removes it.
        """
        guard = Bound(_MAY_END, {"tag": state.tag, "me": me})
        try:
            self.store.operate(self.key(state.name), MapRemove("open", (me,)), when=guard, repeatable=True)
        except (Refused, NotFound):
            now = self.read(state.name, state.tag)
            if me in now.open:
                raise self._refused(now) from None

    # ---- ended

    def close(self, state: BatchState) -> BatchState:
        """Give out no more ordinals, and remove the messages that were not confirmed from the count. Two calls, and
        some more for these messages.

        Raises `Refused` if it is closed, but cannot be listed: then no process would publish the follow-up.
        """
        guard = Bound(_OPEN, {"tag": state.tag})
        closing = Update(self.key(state.name), (Put("closed", SERVER_NOW),), guard)
        _, listed = self.store.repeat_many([closing, self._listing(state.name)]).raise_unless(Refused, NotFound)
        now = self.read(state.name, state.tag)
        if not now.complete:
            self.settle_open(now)
        if isinstance(listed, Refused) and not now.ended:
            raise Refused(
                f"queue {self.queue!r} has {MOST} other batches that have not ended, so batch {state.name!r} is "
                "closed, but nothing would follow on it: close it again once some of them have ended"
            )
        return now

    def settle_open(self, state: BatchState) -> None:
        """Take out what calls have published that had not ended at the close. Three calls, or some more."""
        ordinals = chain.from_iterable(state.open.values())
        while some := list(islice(ordinals, STEP * BLOCK)):
            self.blocks.take_out([self.place(state, n) for n in some], OUT)
        guard = Bound(_SAME, {"tag": state.tag})
        self.store.operate(self.key(state.name), Put("settled", 1), when=guard, repeatable=True)

    def may_follow(self, state: BatchState) -> bool:
        """Note that the follow-up is being published, after which the batch cannot be cancelled; False where it was
        cancelled before. One call.
        """
        return self._noted(state, _MAY_FOLLOW, Put("ending", SERVER_NOW))

    def note_told(self, state: BatchState) -> None:
        """Note that it is published that a message was parked. One call."""
        self._noted(state, _SAME, Put("told", SERVER_NOW))

    def cancel(self, state: BatchState) -> bool:
        """Close and end it, so that nothing follows, and hand out none of its messages; False where that was too late.
        Two calls, or three.
        """
        none = (Put("then", None), Put("on_parked", None))
        marks = tuple(Put(bin, SERVER_NOW) for bin in ("closed", "cancelled", "ended"))
        if not self._noted(state, _MAY_CANCEL, *marks, Put("settled", 1), *none):
            return bool(self.read(state.name, state.tag).cancelled)
        unlisting = Update(self.index, (MapRemove(NAMES, (state.name,)),), Bound(_LISTED, {"name": state.name}))
        self.store.repeat_many([unlisting])  # where that fails, the leader does it
        return True

    def _noted(self, state: BatchState, when: Expr, *ops: Op) -> bool:
        rows = self.store.repeat_many([Update(self.key(state.name), ops, Bound(when, _tag(state)))])
        return rows.raise_unless(Refused, NotFound).settled() == [True]

    def end(self, state: BatchState, since: int) -> None:
        """Note that the follow-up is published, then list the batch no more. Two calls.

        since: when it was listed, as read: one that was closed again meanwhile stays listed for another look.
        """
        noted = Update(self.key(state.name), (Put("ended", SERVER_NOW),), Bound(_SAME & missing("ended"), _tag(state)))
        for update in (noted, self._unlisting(state.name, since, _AS_LISTED)):
            self.store.repeat_many([update]).raise_unless(Refused, NotFound)

    def forget(self, name: str, since: int) -> None:
        """Remove a name that has no record from the list, unless another process may be making it. One call."""
        self.store.repeat_many([self._unlisting(name, since, _FORGOTTEN)])

    def _listing(self, name: str) -> Update:
        put = MapPut(NAMES, name, SERVER_NOW)
        guard = Bound(_LISTED, {"name": name})
        return Update(self.index, (put,), guard, exists=Exists.ANY, or_absent=True, ttl=NEVER)

    def _unlisting(self, name: str, since: int, when: Any) -> Update:
        return Update(self.index, (MapRemove(NAMES, (name,)),), Bound(when, {"name": name, "since": since}))

    # ---- errors

    def _refused(self, now: BatchState) -> Refused:
        if now.cancelled:
            return Refused(
                f"batch {now.name!r} of queue {self.queue!r} was cancelled: publish into one of another name"
            )
        if now.closed:
            return Refused(
                f"batch {now.name!r} of queue {self.queue!r} is closed: publish into one of another name; what it has "
                "stays as it is"
            )
        return Refused(f"{MOST} calls publish into batch {now.name!r} at this moment: publish in hundreds, from fewer")

    def _gone(self, name: str) -> NotFound:
        return NotFound(f"no batch {name!r} of queue {self.queue!r}: its time may be over", name=name)


class Tally:
    """The counts of one batch, again and again: blocks in which all is done are asked once. For one thread."""

    def __init__(self, records: BatchRecords) -> None:
        self._records = records
        self._whole = 0
        self._over = Counts()
        self._left: int | None = None

    def is_done(self, state: BatchState) -> bool:
        """Whether the batch is complete, and waits for no message. One call, and some for 1,000 settled blocks each.

        Messages are handled about in order, so the last block tells most: blocks are asked from the last to the first,
        until one is not settled.
        """
        if not state.complete:
            return False
        if self._left is None:
            self._left = -(-state.given // BLOCK)
        batch, n = self._records.place(state, 0).batch, 1
        while self._left:
            first = max(0, self._left - n)
            found = self._records.blocks.counts(batch, range(first, self._left))
            for counts in reversed(found):
                if counts.settled < min(BLOCK, state.given - (self._left - 1) * BLOCK):
                    return False
                self._left -= 1
            n = min(4 * n, 1_000)
        return True

    def counts(self, state: BatchState) -> Counts:
        """Return the counts by now. One call for each 500,000 ordinals of blocks that are not complete; none if there
        are no such blocks.
        """
        blocks = range(self._whole, -(-state.given // BLOCK))
        batch = self._records.place(state, 0).batch
        found = self._records.blocks.counts(batch, blocks) if blocks else []
        total = self._over
        for number, counts in zip(blocks, found, strict=True):
            total = total.plus(counts)
            if state.complete and number == self._whole and counts.settled >= BLOCK:
                self._whole, self._over = number + 1, total
        return total


def not_followed(queues: Sequence[BatchRecords]) -> list[tuple[BatchRecords, str, Any]]:
    """Return the batches that are done, of these queues of one client, and whose follow-up is not known to be
    published, though that was tried: each with its queue, its name, and its follow-up as it is stored.

    In place of the follow-up stands the error of a record that cannot be read, and of a queue's list of batches, whose
    name is empty. Not promised: that each was refused, as one may be on its way.

    One call, and one for each 1,000 batches that have not ended. Raises the other errors of the store.
    """
    if not queues:
        return []
    store, found, listed = queues[0].store, list[tuple[BatchRecords, str, Any]](), list[tuple[BatchRecords, str]]()
    for queue, index in zip(queues, read_each(store, [one.index for one in queues], NAMES), strict=True):
        if isinstance(index, LatchworkError):
            found.append((queue, "", index))
        elif index is not None:
            listed += [(queue, name) for name in sorted(names_in(index.bins))]
    for some in chunked(listed, MOST):
        rows = store.repeat_many([Update(queue.key(name), (Read("then"),), _IS_ENDING) for queue, name in some])
        rows.raise_unless(NotFound, Refused, Corrupt, Unreadable)
        for (queue, name), row in zip(some, rows, strict=True):
            if not isinstance(row, LatchworkError):
                found.append((queue, name, row[0]))
            elif isinstance(row, Corrupt | Unreadable):
                found.append((queue, name, row))
    return found


def names_in(bins: Mapping[str, Any]) -> dict[str, int]:
    """Return the batches that an index lists; names that no batch can have are left out."""
    names = bins.get(NAMES)
    listed = names.items() if isinstance(names, Mapping) else ()
    return {
        name: since if is_int(since) else 0
        for name, since in listed
        if isinstance(name, str) and 1 <= len(name) <= MAX_NAME
    }


def _part(kind: type[T], key: Key, record: Record | LatchworkError | None) -> T | LatchworkError:
    """Return what is in one of the records of a batch, or the error of one that cannot be read."""
    if isinstance(record, LatchworkError):
        return record
    try:
        return decoded(kind, key, record.bins if record else {})
    except Corrupt as damage:
        return damage


def _ids(names: Names | LatchworkError) -> Mapping[int, str] | LatchworkError:
    return names if isinstance(names, LatchworkError) else names.ids


def _tag(state: BatchState) -> dict[str, Any]:
    return {"tag": state.tag}
