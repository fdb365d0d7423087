"""Messages that are published now and delivered later: entries, and buckets of ids by time (docs/protocols P16).

Set `{client}_delay_set`. An entry, key `E/{queue}/{id}`, is a message with `due` (ms, server), its `shard` (-1 = any)
and `by`, which attempt made it; `group`, the tag of the group that put it off; `moving` once it is on its way,
`cancelled` once it never will be, or was moved; `if` and `sure` of one that goes with a write (P28). A bucket, key
`B/{queue}/{n}/{k}`, has the map `ids` of the entries that are due in a quarter of a second, at most 500 in a record,
and as many records as it takes. The control record, `C/{queue}`, is in `control.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from ....errors import (
    AlreadyExists,
    BinMismatch,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from ....inputs import checked_seconds
from ....plain import exact_time, shown
from ....store import (
    Bin,
    Compute,
    Exists,
    Key,
    MapPut,
    Param,
    Put,
    Read,
    Record,
    RecordStore,
    Update,
    exists,
    missing,
)
from ....store.model.expr import SERVER_NOW, Bound, MapSize, largest, smallest
from ....store.model.ops import Op
from ....store.port import Row
from ....store.rows import Rows, attempted, chunked
from ...rows import read_each
from ..config import MAX_EXPIRY, QueueConfig
from ..envelope import CONTENT, Envelope
from ..hooks import UNCOUNTED, Counting, RowsBeside, Target
from ..places import DELAYED, Places, cancelled_in
from ..shards import Shards
from ..slots import Stamped
from .control import (
    AS_FAR,
    HORIZON,
    IN,
    LAST_RETRY,
    MARGIN,
    OUT,
    RETRY_IN,
    RETRY_OUT,
    ControlRecord,
    counting,
    may_have_passed,
)
from .stored import (
    IF,
    MOVED,
    SURE,
    Entry,
    LastRetry,
    ids_in,
    is_retry,
    name_of_retry,
)

WIDTH = 250
"""Milliseconds of a bucket. Its messages are due at its end."""
CHUNK = 500
"""Ids in one record of a bucket."""
BUCKETS = 1_000
"""Records of buckets, or messages, read in one call."""
LEAPS = tuple(2**n for n in range(10))
"""How far behind a full record others are looked for: so as few calls find the last of many as its number has digits in
binary.
"""
IDS = "ids"
ERROR_SHOWN = 200
"""Characters of the last error that the control record has."""
SKEW = 1.0
"""Seconds by which the clocks of two servers may differ, for the order of messages that are put off alike."""
_ROOM = missing(IDS) | (MapSize(IDS) <= Param("room"))
_IN = largest(SERVER_NOW + Param("ms"), Param("least"))
_AT = largest(Param("ms"), SERVER_NOW)
"""A time in the past is now: else the message may have expired before it is published, and the leader looks at all
buckets since then.
"""
_LOWERED = smallest(Bin(HORIZON) - 1, Param("to"))
"""Different in any case, so that a process that read the horizon before this write cannot move it past ids that it has
not seen.
"""
WAITS = (missing("moving") | (exists(IF) & missing(SURE))) & (
    missing("cancelled") | Bin("cancelled", str).eq(Param("by", str))
)
"""Not on its way: one that goes with a write is not before it is sure, though it was looked at (P28)."""
_AS_CANCELLED = missing("moving") & Bin("cancelled", str).eq(Param("by", str))
_AS_MARKED = (exists("moving") & missing("cancelled") & Bin("moving").eq(Param("mark"))) | (
    exists("cancelled") & Bin("cancelled", str).eq(Param("by", str))
)
"""As its leader has marked it, or as an earlier attempt of the same update has left it."""
_DROPPED = tuple(Put(bin, None) for bin in ("data", "headers", "lastError", "progress", "batch", "moving"))
_AS_READ = (
    missing("moving") & missing("cancelled") & Bin("by", str).eq(Param("entry", str)) & Bin("due").eq(Param("due"))
)
_STATE = ("by", "due", "moving", "cancelled", "batch", IF, SURE)
_THERE = (Compute(SERVER_NOW),)
_EMPTY = tuple(Put(bin, None) for bin in (*CONTENT, "keepId", "cancelled", IF, SURE))


SEALED = "sealed"
"""Stands in `cancelled` where no message was, and none will be (P30)."""
LATE = 900
"""Seconds for which an entry stays whose message was moved: longer than a request to make it can be on its way, as TCP
gives up after less.
"""


class Due(NamedTuple):
    """The time at which a message is due: ms from the server's present time, or (absolute) ms since the epoch."""

    ms: int
    absolute: bool

    def value(self, least: int) -> Any:
        """Return the expression that the server computes. least: ms since the epoch, for one from the present time."""
        return Bound(_AT, {"ms": self.ms}) if self.absolute else Bound(_IN, {"ms": self.ms, "least": least})


def checked_due(config: QueueConfig, delay: timedelta | float | None, at: datetime | None) -> Due | None:
    """Return when a message is due; None: now. Raises `InvalidRequest`.

    delay: a timedelta or seconds, from 0 to the queue's expiry, at most a year.
    at: an aware datetime, at most as far ahead; one in the past is now.
    """
    if delay is not None and at is not None:
        raise InvalidRequest("delay and at: give one of them")
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidRequest(f"at is {shown(at)}; give a datetime with a time zone, as datetime.now(timezone.utc)")
        return Due(round(at.timestamp() * 1000), absolute=True)
    if delay is None:
        return None
    limit = limit_of(config).total_seconds()
    seconds = checked_seconds("delay", delay, 0, limit, why=" (the queue's expiry, or a year)")
    return Due(math.ceil(seconds * 1000), absolute=False) if seconds else None


def limit_of(config: QueueConfig) -> timedelta:
    """Return how far ahead a message may be due."""
    return min(config.queue_expiry, MAX_EXPIRY)


def bucket_of(due: int) -> int:
    """Return the bucket in which an entry waits: it ends at `number * WIDTH` ms, not before the entry is due."""
    return -(-due // WIDTH)


def later(delayed: DelayedMessages, queue: Shards, dues: Sequence[Due]) -> Target:
    """Return the delayed messages of a queue as a target for messages in hand, each due then. Two calls.

    An entry has the delivery and the slot in its name, so it is stored once, however often that is asked for. Three
    calls more, or as many as `DelayedMessages.enter_found` says, if it was there already.
    """

    def store(held: Sequence[Stamped], envelopes: Sequence[Envelope]) -> Rows[str]:
        shards = [queue.home(one.slot.shard) for one in held]
        named = zip(envelopes, held, strict=True)
        names = [name_of_retry(envelope.msg_id, envelope.attempts, one.delivery, one.slot) for envelope, one in named]
        try:
            rows = delayed.publish(envelopes, shards, dues, names=names, once=True)
        except InvalidRequest as failure:  # of a message that another program has written: it alone is refused
            if len(held) == 1:
                return Rows([failure])
            each = zip(held, envelopes, dues, strict=True)
            return Rows(later(delayed, queue, [due])([one], [envelope])[0] for one, envelope, due in each)
        except LatchworkError as failure:
            return Rows([failure] * len(held))
        # One that was there already may be in no bucket: an earlier attempt may have ended before that.
        return rows.recover(AlreadyExists, lambda places: delayed.enter_found([names[n] for n in places]))

    return store


class DelayedMessages(ControlRecord):
    """The entries and buckets of one queue, beside its control record. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str, config: QueueConfig) -> None:
        super().__init__(store, client_id, config)
        self._k: dict[int, int] = {}
        self._numbers = count()
        self.places: Places | None = None
        """The traces of the queue's messages (P26); None of a group."""
        self.counting: Counting = UNCOUNTED
        self._last: dict[tuple[Due, int], tuple[int, float]] = {}

    def entry(self, message_id: str) -> Key:
        """Return the key of an entry."""
        return Key(self._set, f"E/{self._queue}/{message_id}")

    def bucket(self, number: int, k: int) -> Key:
        """Return the key of the k-th record of a bucket."""
        return Key(self._set, f"B/{self._queue}/{number}/{k}")

    # ---- the publisher's side

    def ahead(self, due: Due) -> int:
        """Return how far ahead this is, in ms. No I/O. Raises `InvalidRequest` if it is too far."""
        ahead = due.ms - int(self.store.seams.wall() * 1000) if due.absolute else due.ms
        if ahead > limit_of(self.config).total_seconds() * 1000 + MARGIN:
            raise InvalidRequest(
                f"a message is due {exact_time(limit_of(self.config))} ahead at most: the queue's expiry, or a year"
            )
        return ahead

    def publish(
        self,
        envelopes: Sequence[Envelope],
        shards: Sequence[int | None],
        due: Due | Sequence[Due],
        *,
        names: Sequence[str] | None = None,
        once: bool = False,
        given: bool = False,
    ) -> Rows[str]:
        """Store messages, up to 1,000, for later; return for each the name of its entry once it is safe, or the error.

        due: of all, or of each.
        names: of the entries, if they are not the ids of the messages.
        given: whether their publisher gave the ids, or they come from another queue: a former message of an id may have
            been cancelled here, which does not count for the new one.
        once: an entry of that name stands for the message for good, also once it was cancelled or moved.

        Entries come first, then their ids. An id without an entry was cancelled, moved, or has expired; an entry whose
        id is in no bucket was never acknowledged. Two calls; one more for a process's first message, if a record of the
        bucket is full, and if the message came late.

        Raises `InvalidRequest` as `ahead` does.
        """
        if not envelopes:
            return Rows()
        dues = [due] * len(envelopes) if isinstance(due, Due) else due
        ahead = max(map(self.ahead, set(dues)))
        self._make_control()
        by, now = self.store.seams.unique(), int(self.store.seams.wall() * 1000)
        ttl = self.kept + max(0, ahead // 1000)
        is_new = names is None
        names = [one.msg_id for one in envelopes] if names is None else names
        # Each has a token of its own: of two that have one id, only the first is there. Its number is for their order.
        tokens = [f"{by}.{next(self._numbers)}" for _ in envelopes]
        values = {at: at.value(self._least(at)) for at in set(dues)}
        # 1. Store the entries, each with its time by the server.
        group = Put("group", self.group)
        made = [
            self._creating(name, one.ops(now), token, shard, Put("due", values[at]), group, Read("due"), ttl=ttl)
            for name, token, one, shard, at in zip(names, tokens, envelopes, shards, dues, strict=True)
        ]
        noted = self._noted(names, envelopes, now, fresh=given)
        beside = RowsBeside(self.counting.rows(envelopes) if is_new else {})
        renewals = self._renewals(envelopes, noted) if given else {}
        sent = self.store.repeat_many([*made, *noted.values(), *renewals.values(), *beside.updates])
        uncounted = beside.taken_from(sent)
        traced, renewed = sent[len(made) :][: len(noted)], sent[len(made) + len(noted) :]
        unsafe = {**uncounted, **_not_renewed(renewals, renewed)}
        rows = Rows(self._ours(*each, once=once) for each in zip(made, sent[: len(made)], tokens, strict=True))
        # 2. Put their ids into the buckets of these times.
        moments = {n: moment for n, (moment,) in rows.sift(range(len(rows)))[0].items()}
        buckets = self._buckets(moments, dues)
        ids: dict[int, list[str]] = defaultdict(list)
        for n, number in buckets.items():
            ids[number].append(names[n])
        last: LastRetry | None = None
        if retries := [n for n in moments if is_retry(names[n])]:
            one = envelopes[retries[-1]]
            last = LastRetry(moments[retries[-1]], one.msg_id, (one.last_error or one.reason or "")[:ERROR_SHOWN])
        failures = self._enter(ids, ttl, last)
        # 3. Of what came here before, and went on, take back the trace; drop what was cancelled while it came here.
        if gone_on := [n for n in noted if _has_gone_on(rows[n])]:
            with suppress(LatchworkError):  # else its last place is said to be here
                self._take_back(names, envelopes, gone_on, now)
        if cancelled := [list(noted)[n] for n in cancelled_in(traced)]:
            self._drop([names[n] for n in cancelled])
        return rows.then(lambda places: [failures.get(buckets[n]) or unsafe.get(n) or names[n] for n in places])

    def _creating(
        self, name: str, message: tuple[Op, ...], token: str, shard: int | None, *more: Op, ttl: int
    ) -> Update:
        """Return the update that creates an entry. more: what else is written, and what is read."""
        ops = (*message, Put("by", token), Put("shard", -1 if shard is None else shard), *more)
        return Update(self.entry(name), ops, exists=Exists.CREATE, ttl=ttl)

    def _renewals(self, envelopes: Sequence[Envelope], noted: Collection[int]) -> dict[int, Update]:
        """Return the rows by which former cancels of ids do not count, but for those that `_noted` writes."""
        if self.places is None:
            return {}
        return {n: self.places.renewing(one.msg_id) for n, one in enumerate(envelopes) if n not in noted}

    def _noted(
        self, names: Sequence[str], envelopes: Sequence[Envelope], now: int, *, fresh: bool
    ) -> dict[int, Update]:
        """Return the rows by which messages leave a trace: those whose entries have other names than their ids."""
        if self.places is None:
            return {}
        return {
            n: self.places.putting(one.msg_id, f"{DELAYED} {name}", now, fresh=fresh)
            for n, (name, one) in enumerate(zip(names, envelopes, strict=True))
            if one.msg_id and name != one.msg_id
        }

    def _take_back(self, names: Sequence[str], envelopes: Sequence[Envelope], some: Sequence[int], now: int) -> None:
        """Take back the traces of `_noted` of some messages. One call."""
        places = self.places
        assert places is not None  # noqa: S101 - they were noted
        self.store.repeat_many([places.forgetting(envelopes[n].msg_id, f"{DELAYED} {names[n]}", now) for n in some])

    def _drop(self, names: Sequence[str]) -> None:
        """Cancel entries whose messages were cancelled while they came here. Two calls, more with batches."""
        by = self.store.seams.unique()
        with suppress(LatchworkError):  # the canceller asks again
            gone, _ = self.store.repeat_many([self.cancelling(name, by) for name in names]).sift(names)
            self.left(list(gone), [batch for (batch,) in gone.values()])

    def _least(self, due: Due) -> int:
        """Return when the last message was due that this thread has put off for as long, if that was a moment ago.

        The server that stores the next message may have a clock a little behind that of the one before.
        """
        latest, since = self._last.get((due, self.store.seams.thread()), (0, 0.0))
        return latest if self.store.seams.monotonic() - since < SKEW else 0

    def _buckets(self, moments: Mapping[int, int], dues: Sequence[Due]) -> dict[int, int]:
        """Return the bucket of each message, which is due at that moment; note the last moment of each due time."""
        latest, buckets = dict.fromkeys(dues, 0), dict[int, int]()
        for place, moment in moments.items():
            at = dues[place]
            latest[at] = max(latest[at], moment)  # in no bucket before that of a message that was given before it
            buckets[place] = bucket_of(latest[at])
        now, thread = self.store.seams.monotonic(), self.store.seams.thread()
        for due, moment in latest.items():
            if not due.absolute and moment > self._last.get((due, thread), (0, 0.0))[0]:
                self._last.pop((due, thread), None)
                self._last[due, thread] = moment, now
        for old in list(self._last)[:-CHUNK]:
            self._last.pop(old, None)
        return buckets

    def _ours(self, made: Update, row: Row, by: str, *, once: bool = False) -> Row:
        """Return the row. If there was an entry already: what it says, if an attempt in doubt of this publisher made
        it; if it was cancelled or moved, or its life is over, it is replaced, unless that is to be done once.
        """
        if not isinstance(row, AlreadyExists):
            return row
        key, name = made.key, made.key.name.split("/", 2)[2]  # an id may have a slash
        try:
            found, is_over = self._entry_at(key)
            is_free = found is not None and (is_over or found.cancelled not in (None, "", SEALED))
            if found and found.by != by and is_free and not found.moving and not once:
                # By what was read, so that a request that arrives late brings back nothing that was cancelled since.
                again = Bound(_AS_READ, {"entry": found.by, "due": found.due})
                if not is_over:
                    self.counting.gone([found.batch])
                    again = Bound(_AS_CANCELLED, {"by": found.cancelled})
                (row,) = self.store.repeat_many([Update(key, (*_EMPTY, *made.ops), again, ttl=made.ttl)])
                if not isinstance(row, Refused | NotFound):
                    if is_over and not isinstance(row, LatchworkError):
                        self.left([name], ())  # who cancels an entry counts it; of this one nobody has
                    return row
                found, _ = self._entry_at(key)
        except LatchworkError as failure:
            return OutcomeUnknown(f"{key}: {failure}; the message may be delivered")
        if found is None:
            return Unavailable(f"the delayed message {name!r} of {self.name!r} expired just now: publish it again")
        if found.by == by:
            return (found.due,)
        text = f"a delayed message {name!r} waits in {self.name!r} already: cancel it, or use another id"
        return AlreadyExists(text, moved=found.moved)

    def _entry_at(self, key: Key) -> tuple[Entry | None, bool]:
        """Return the entry there without its message, and whether its life is over. One call."""
        try:
            *values, now = self.store.operate(key, *map(Read, _STATE), Compute(SERVER_NOW), repeatable=True)
        except NotFound:
            return None, False
        read = zip(_STATE, values, strict=True)
        entry = Entry.of({bin: value for bin, value in read if value is not None})
        return entry, entry.cancelled is None and entry.is_over(self.config.message_expiry, now)

    def _enter(
        self,
        ids: dict[int, list[str]],
        ttl: int,
        last: LastRetry | None = None,
        *,
        uncounted: Collection[str] | None = None,
    ) -> dict[int, LatchworkError]:
        """Put the ids into their buckets; the errors, by bucket. One call where no record of a bucket was full, two
        where the next one was not; else the last record is searched for.

        last: of the messages that have failed, the last one; for people.
        uncounted: the ids that the control record has not counted yet; None: all.
        """
        left = {number: list(some) for number, some in ids.items() if some}
        failures: dict[int, LatchworkError] = {}
        new = [one for some in left.values() for one in some] if uncounted is None else uncounted
        noting = counting(IN, RETRY_IN, new) if new else ()
        if last is not None:
            noting += (Put(LAST_RETRY, list(last)),)
        crowded: dict[int, bool] = {}  # the buckets whose record was full; whether the next one was, too
        while left:
            parts = {number: (self._k.get(number, 0), some[:CHUNK]) for number, some in left.items()}
            rows = [self._appending(number, k, some, ttl) for number, (k, some) in parts.items()]
            searched = [(number, k + leap) for number, (k, _) in parts.items() if crowded.get(number) for leap in LEAPS]
            there = [Update(self.bucket(*place), _THERE) for place in searched]
            # Refused if it is another group's: nothing is counted there, and any bucket may have been passed.
            looking = Update(self.control, (*noting, *AS_FAR), self._is_mine)
            *outcomes, seen = answered = self.store.repeat_many([*rows, *there, looking])
            answers = zip(searched, outcomes[len(rows) :], strict=True)
            found = {place for place, row in answers if not isinstance(row, LatchworkError)}
            if isinstance(seen, NotFound):
                return self._enter_again(ids, ttl)
            noting, late, passed = (), [], None
            if not isinstance(seen, LatchworkError) and not answered.sent_again:  # else it was read before the last row
                passed = may_have_passed(*seen)
            for (number, (k, some)), row in zip(parts.items(), outcomes[: len(rows)], strict=True):
                if isinstance(row, Refused):
                    self._k[number] = max((at for one, at in found if one == number), default=k + 1)
                    crowded[number] = number in crowded
                elif isinstance(row, LatchworkError):
                    failures[number] = row
                    del left[number]
                else:
                    if passed is None or max(passed, row[0] - 1) >= number * WIDTH:
                        late.append(number)
                    left[number] = left[number][len(some) :]
                    if not left[number]:
                        del left[number]
            if late:
                self._look_again(min(late), failures, late)
        while len(self._k) > CHUNK:
            self._k.pop(next(iter(self._k)))
        return failures

    def _enter_again(self, ids: dict[int, list[str]], ttl: int) -> dict[int, LatchworkError]:
        """Put the ids into their buckets after the store has lost the control record, and perhaps what is remembered
        of buckets.
        """
        self._forget()
        try:
            self._make_control()
        except LatchworkError as failure:
            return dict.fromkeys(ids, OutcomeUnknown(f"{self.name}: {failure}; the message may be delivered"))
        return self._enter(ids, ttl)

    def _forget(self) -> None:
        """Forget everything that is known of the store's records: it came back without the control record."""
        self._k, self._has_control = {}, False

    def enter_again(self, ids: Sequence[str], at: int, *, ahead: int = 0) -> LatchworkError | None:
        """Put entries, which were counted when they were published, into the bucket of that time (ms by the server) as
        well; None, or why not.

        ahead: ms until then.
        """
        number = bucket_of(at)
        return self._enter({number: list(ids)}, self.kept + ahead // 1000, uncounted=()).get(number)

    def enter_found(self, names: Sequence[str]) -> Rows[str]:
        """Make sure that entries that were there already are in buckets that will be looked at; return the name of
        each, or why that failed.

        Who stored them may have died, or may have got no answer, before their ids were in a bucket. Entries that are
        on their way, cancelled or gone by now are left as they are. Two calls; some more where buckets have several
        records, or one has to be written.
        """
        return attempted(len(names), lambda: self._enter_found(names))

    def _enter_found(self, names: Sequence[str]) -> Rows[str]:
        # 1. When is each due, and up to where may buckets have been passed?
        reads = (Read("due"), Read("moving"), Read("cancelled"), Compute(SERVER_NOW))
        *rows, seen = self.store.repeat_many([
            *(Update(self.entry(name), reads) for name in names), Update(self.control, AS_FAR)
        ])  # fmt: skip
        passed = None if isinstance(seen, LatchworkError) else may_have_passed(*seen)
        found, failures = Rows(rows).sift(names)
        outcomes = {name: row for name, row in failures.items() if not isinstance(row, NotFound)}
        times = {
            name: (Entry.of({"due": due}).due, now)
            for name, (due, moving, cancelled, now) in found.items()
            if moving is None and cancelled is None
        }
        # 2. Which bucket has the id of each?
        entered = self._buckets_with(times)
        # 3. Those in none, or in one that may have been passed, or is next, go into that of their time, or of now.
        ids: dict[int, list[str]] = defaultdict(list)
        ahead = 0
        for name, (due, now) in times.items():
            if name not in entered or passed is None or (entered[name] - 1) * WIDTH <= passed:
                ids[bucket_of(max(due, now))].append(name)
                ahead = max(ahead, due - now)
        if ids:
            uncounted = [name for name in times if name not in entered]
            errors = self._enter(ids, self.kept + ahead // 1000, uncounted=uncounted)
            outcomes |= {name: failure for number, failure in errors.items() for name in ids[number]}
        return Rows(outcomes.get(name, name) for name in names)

    def _buckets_with(self, times: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Return for each entry a bucket that has its id, among those of its time, and of now. One call, and one more
        for each binary digit of the number of records that a bucket has.

        times: when each is due, and the server's time.
        """
        numbers = set[int]()
        for due, now in times.values():  # of messages that are stored together, the last one decides on the bucket
            numbers |= {*range(bucket_of(due), bucket_of(due + round(SKEW * 1000)) + 1), bucket_of(max(due, now))}
        found: dict[str, int] = {}
        first, size = 0, 1
        while numbers and len(found) < len(times):
            places = [(number, k) for number in sorted(numbers) for k in range(first, first + size)]
            for some in chunked(places, BUCKETS):
                records = read_each(self.store, [self.bucket(*place) for place in some], IDS)
                for (number, _), record in zip(some, records, strict=True):
                    if record is None:
                        numbers.discard(number)  # behind it nobody looks
                    ids = ids_in(record.bins.get(IDS)) if isinstance(record, Record) and number in numbers else []
                    # An id in a bucket that ends before it is due is taken out, as too early.
                    found |= {one: number for one in ids if one in times and times[one][0] <= number * WIDTH}
            first, size = first + size, 2 * size
        return found

    def sealing(self, name: str, ttl: int) -> Update:
        """Return the update that creates a cancelled entry: no message will be there."""
        return Update(self.entry(name), (Put("cancelled", SEALED),), exists=Exists.CREATE, ttl=ttl)

    def _appending(self, number: int, k: int, ids: Sequence[str], ttl: int) -> Update:
        guard = Bound(_ROOM, {"room": CHUNK - len(ids)})
        ops: tuple[Op, ...] = (*(MapPut(IDS, one, 1) for one in ids), Compute(SERVER_NOW))
        return Update(self.bucket(number, k), ops, guard, exists=Exists.ANY, or_absent=True, ttl=ttl)

    def _look_again(self, number: int, failures: dict[int, LatchworkError], late: Sequence[int]) -> None:
        """Have the buckets read again from this one on: ids may have been put there after the last read."""
        lower = Put(HORIZON, Bound(_LOWERED, {"to": (number - 1) * WIDTH}))
        try:
            try:
                self.store.repeat(Update(self.control, (lower,)))
            except (BinMismatch, Corrupt, Refused):  # the horizon is damaged
                self.rebuild()
        except LatchworkError as failure:
            unknown = OutcomeUnknown(f"{self.name}: {failure}; the message may be delivered")
            failures.update(dict.fromkeys(late, unknown))

    def cancel(self, message_id: str) -> bool:
        """Make sure that a message is never delivered; False where it is on its way, was delivered, or is not there.

        One call. Raises `OutcomeUnknown` and the store's errors.
        """
        by = self.store.seams.unique()
        try:
            (batch,) = self.store.repeat(self.cancelling(message_id, by))
        except (NotFound, Refused) as refusal:
            if not refusal.details.get("doubt"):
                return False
            unknown = f"{message_id!r} of {self.name!r}: it may be cancelled, or on its way; ask again"
            raise OutcomeUnknown(unknown) from refusal
        self.left([message_id], [batch])
        return True

    def cancelling(self, name: str, by: str) -> Update:
        """Return the update that cancels an entry, and reads its place in a batch."""
        mark = (Put("cancelled", by), Put("data", ""), Read("batch"))
        return Update(self.entry(name), mark, Bound(WAITS, {"by": by}))

    def dropping(self, name: str, entry: Entry, mark: int) -> Update:
        """Return the update that drops an entry whose message was moved, or is over, and leaves that it was there: so
        a request to make it that arrives late does not bring it back.

        mark: its `moving`; if another process has marked it since, or it was cancelled, it is refused.
        """
        by = f"{MOVED}{entry.by} {mark}"
        ops = (Put("cancelled", by), *_DROPPED)
        return Update(self.entry(name), ops, Bound(_AS_MARKED, {"mark": mark, "by": by}), ttl=LATE)

    def left(self, names: Sequence[str], texts: Sequence[object]) -> None:
        """Count entries that were cancelled, and remove cancelled messages from the count of their batches."""
        if names:
            counted = Update(self.control, counting(OUT, RETRY_OUT, names), self._is_mine)
            self.store.repeat_many([counted, self.told_no_more(names)])
        self.left_batches(texts)

    def left_batches(self, texts: Sequence[object]) -> None:
        """Remove cancelled messages from the count of their batches, which these bins name (P18).

        If that fails, or the process dies, the upkeep does it when the messages would be due.
        """
        with suppress(LatchworkError):
            self.counting.gone(texts)


def _not_renewed(places: Iterable[int], rows: Sequence[Row]) -> dict[int, LatchworkError]:
    """Return by place what to answer for messages whose ids could not be renewed."""
    return {
        n: OutcomeUnknown(f"the message may be delivered, unless a former one of its id was cancelled: {row}")
        for n, row in zip(places, rows, strict=True)
        if isinstance(row, LatchworkError) and not isinstance(row, NotFound)
    }


def _has_gone_on(row: object) -> bool:
    return isinstance(row, AlreadyExists) and row.details.get("moved") is True
