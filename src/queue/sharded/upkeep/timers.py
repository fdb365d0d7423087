"""The duty that delivers what was published for later, as it becomes due (docs/protocols P16)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ....background import FailureLog
from ....coord.election.term import Leadership
from ....errors import Corrupt, InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused, Unreadable
from ....logs import Log
from ....plain import counted
from ....store import Add, Bin, Compute, MapRemove, Param, Put, Read, Record, Update, exists, missing
from ....store.model.expr import SERVER_NOW, Bound, has
from ....store.model.ops import MapPut, ReadAll
from ....store.rows import Rows
from ...rows import read_each, readable
from ..delayed.control import BROUGHT, EXPIRED, EXPIRED_AT, HORIZON, MARGIN, OUT, RETRY_OUT, counting
from ..delayed.entries import IDS, WIDTH
from ..delayed.stored import Entry, brought_in, horizon_in, ids_in, in_order, was_handed_out
from ..ledger.dedup import KeyedMessage, publish_unless_there
from ..publishing.publish import SPREAD
from ..subscription import Subscription
from .conditions import Conditions
from .farms import HasQueues

log = Log(__name__)

AHEAD = 2.0
"""Seconds between two looks while nothing is due; a look also sees which buckets of that time have anything in them."""
DISCOVER = 4.0
"""Seconds after which it is asked again whether a queue has ever had a delayed message."""
SCAN = 1_000
"""Buckets in one look at most."""
LOOKS = 20
"""Looks at the buckets of one queue at most, before the next queue has its turn."""
PASS = 5_000
"""Milliseconds by which the horizon is moved at least."""
LATER = 60_000
"""Milliseconds after which a message that cannot be moved is tried again."""
MEMORY = 2 * 86_400
"""Seconds for which the ledger knows that a message was moved."""
SCOPE = "delay"
_TAKE = (Put("moving", SERVER_NOW), ReadAll())
_UNMARK, _IS_MARKED = (Put("moving", None),), exists("moving") & Bin("moving").eq(Param("mark"))
_DUE = exists("data") & missing("cancelled") & (missing("due") | (Bin("due") <= Param("end")))
"""An entry may be in a bucket that ends before it is due: it was cancelled, and published again for later."""
_UNMOVED = Bin(HORIZON).eq(Param("old")) & (Param("to") <= SERVER_NOW)
_READ_IDS, _HAS_IDS = (Read(IDS),), (Compute(exists(IDS)),)
_UNCOUNTED = has(BROUGHT, Param("place"))


def _is_dropped(row: Record | LatchworkError) -> bool:
    return isinstance(row, Record) and Entry.of(row.bins).moved


def is_for_good(failure: LatchworkError) -> bool:
    """Whether another try cannot succeed: a record is damaged, or too large."""
    return isinstance(failure, Corrupt | Unreadable | InvalidRequest)


class Timers:
    """The duty that moves what is due into its queue, each message once."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms = farms
        self._known: dict[tuple[str, str], QueueTimers] = {}
        self._asked = float("-inf")

    def run(self, leadership: Leadership) -> float:
        """Move what is due in every queue; the seconds until something may be due again. One call a queue at least."""
        queues = {(queue.registry.farm_id, queue.name): queue for queue in self._farms.queues()}
        # One that was made again has other shards, and what is known is of the one before.
        self._known = {name: one for name, one in self._known.items() if one.queue is queues.get(name)}
        self._discover(queues)
        pauses = [DISCOVER]
        for name in list(self._known):
            leadership.check()
            try:
                pauses.append(self._known[name].run(leadership))
            except NotFound:
                del self._known[name]
            except Exception as failure:  # noqa: BLE001 - a defect that one queue meets must not stop the others
                leadership.check()
                self._known[name].failure_log.record(failure, f"delayed messages of {name[1]} are moved later")
                pauses.append(AHEAD)
        return min(pauses)

    def _discover(self, queues: Mapping[tuple[str, str], Subscription]) -> None:
        """Find the queues that ever had a delayed message: one call for all that are not known to have."""
        unknown = [name for name in queues if name not in self._known]
        if not unknown:
            return
        store = queues[unknown[0]].store
        if store.seams.monotonic() < self._asked + DISCOVER:
            return
        self._asked = store.seams.monotonic()
        found = read_each(store, [queues[name].delayed.control for name in unknown], HORIZON)
        for name, record in zip(unknown, found, strict=True):
            if record is not None:
                self._known[name] = QueueTimers(queues[name])


class Look(NamedTuple):
    """The result of a look: the horizon and the server's time (ms), and the last bucket looked at.

    full: the buckets that have ids, or records that are not known yet, with the ids of the records that were read.
    lowered: whether a late publisher has lowered the horizon, and so may have put ids into buckets that were already
        read: then the horizon is not moved, and the buckets are read again.
    brought: what earlier passes have noted before they dropped it, and not counted: the bin as it is stored.
    """

    horizon: int
    now: int
    full: dict[int, list[list[str]]]
    last: int
    lowered: bool
    brought: Any


class QueueTimers:
    """The timers of one queue.

    Nothing is remembered but when the server's time was what, and how many records a bucket has, so that a look needs
    one call: whatever is above the horizon in the control record is looked at each time.
    """

    def __init__(self, queue: Subscription) -> None:
        self.queue, self._delayed, self._store = queue, queue.delayed, queue.store
        self._seams, self._conditions = queue.store.seams, Conditions(queue.delayed)
        self.failure_log = FailureLog(self._seams, log)
        self._horizon: int | None = None
        self._now, self._at = 0, 0.0
        self._records: dict[int, int] = {}
        self._turn = int(self._seams.uniform(0, queue.config.shards))

    def run(self, leadership: Leadership) -> float:
        """Move what is due; the seconds until the next bucket that has anything in it, at most `AHEAD`."""
        if self._horizon is None:
            self._delayed.take_over()
            self._ask()
        for _ in range(LOOKS):
            leadership.check()
            self._pass_expired()
            before = self._now  # the server's time before anything below was read
            look = self._look()
            if look.lowered:  # what came late is older than what was found, so it comes first
                look = self._look()
            if look.brought not in (None, {}):
                self._count_brought(look.brought)
            blocked = look.last + 1
            for number in sorted(number for number in look.full if number * WIDTH <= look.now):
                leadership.check()
                if not self._empty(number, look.full[number]):
                    blocked = min(blocked, number)
            if not look.lowered:
                self._pass(look.horizon, min((blocked - 1) * WIDTH, before - MARGIN))
            if blocked <= look.last or (not look.lowered and (look.last + 1) * WIDTH > look.now):
                break
        else:
            return 0.0  # so far behind that other queues have their turn before it goes on
        later = [number * WIDTH - self._guess() for number in look.full if number * WIDTH > look.now]
        return max(0.0, min([AHEAD * 1000, *later]) / 1000)

    def _ask(self) -> None:
        """Read the horizon and the server's time. One call. Raises `NotFound`."""
        row = self._store.operate(self._delayed.control, Read(HORIZON), Compute(SERVER_NOW))
        self._horizon, self._now = self._checked(*row)
        self._at = self._seams.monotonic()

    def _checked(self, stored: Any, now: int) -> tuple[int, int]:
        """Return the horizon and the server's time. A damaged horizon is written again, before all that is due."""
        horizon = horizon_in(stored, now)
        if horizon is None:
            log.error("%s was damaged: what is due in queue %s is looked for", self._delayed.control, self.queue.name)
            self._delayed.rebuild()
            horizon = now - self._delayed.kept * 1000 - MARGIN
        return horizon, now

    def _guess(self) -> float:
        """Return the server's time now, about, in ms."""
        return self._now + (self._seams.monotonic() - self._at) * 1000

    def _look(self) -> Look:
        """Look at the buckets above the horizon, up to the buckets of the next seconds. One call."""
        delayed = self._delayed
        assert self._horizon is not None  # noqa: S101 - `run` has asked
        first, guess = self._horizon // WIDTH + 1, int(self._guess())
        due = range(first, min(max(guess // WIDTH, first - 1), first + SCAN - 1) + 1)
        ahead = range(due.stop, min(due.stop + int(AHEAD * 1000) // WIDTH, first + SCAN))
        self._records = {number: n for number, n in self._records.items() if number >= first}
        # All known records, and the next one, into which a late publisher may have put ids since.
        places = [(number, k) for number in due for k in range(self._records.get(number, 0) + 1)]
        control, *rows = self._store.repeat_many([
            Update(delayed.control, (Read(HORIZON), Compute(SERVER_NOW), Read(BROUGHT))),
            *(Update(delayed.bucket(*place), _READ_IDS) for place in places),
            *(Update(delayed.bucket(number, 0), _HAS_IDS) for number in ahead),
        ])  # fmt: skip
        if isinstance(control, LatchworkError):
            raise control
        full = self._full(places, rows[: len(places)])
        later = Rows(rows[len(places) :]).values((False,))
        full |= {number: [] for number, (has_ids,) in zip(ahead, later, strict=True) if has_ids}
        horizon, now, brought = control
        before, (self._horizon, self._now) = self._horizon, self._checked(horizon, now)
        self._at = self._seams.monotonic()
        return Look(self._horizon, self._now, full, due.stop - 1, self._horizon < before, brought)

    def _full(self, places: Sequence[tuple[int, int]], rows: Sequence[Any]) -> dict[int, list[list[str]]]:
        """Return the buckets, among those whose records were read, that have ids, or records that are not known yet."""
        found: dict[int, list[list[str]]] = {}
        for (number, _), row in zip(places, rows, strict=True):
            if not isinstance(row, NotFound):
                found.setdefault(number, []).append(self._ids(number, row))
        return {n: ids for n, ids in found.items() if any(ids) or len(ids) > self._records.get(n, 0)}

    def _ids(self, number: int, row: Any) -> list[str]:
        """Return the ids that were read from a record of a bucket, none if it is damaged. Raises the store's errors."""
        if not isinstance(row, LatchworkError):
            return ids_in(row[0])
        if not is_for_good(row):
            raise row
        log.error("which messages of %s are due in bucket %d is lost: %s", self.queue.name, number, row)
        return []

    def _pass_expired(self) -> None:
        """Move a horizon that is so old that nothing above it can still be there; else it would be looked for."""
        assert self._horizon is not None  # noqa: S101 - `run` has asked
        self._pass(self._horizon, self._now - self._delayed.kept * 1000 - MARGIN)

    def _pass(self, horizon: int, to: int) -> None:
        """Move the horizon, unless it is nearly there, another process has moved it, or the server's clock was set
        back.
        """
        if to - horizon < PASS:
            return
        guard = Bound(_UNMOVED, {"old": horizon, "to": to + MARGIN})
        try:
            self._store.repeat(Update(self._delayed.control, (Put(HORIZON, to),), guard))
        except Refused:
            self._ask()
        else:
            self._horizon = to

    # ---- what was brought and not counted

    def _counting(self, place: str, brought: Collection[str], expired: int = 0) -> Update:
        """Return the update that counts what was brought of a bucket's record, once, and takes away its note.

        expired: how many of these had expired.
        """
        noted = (Add(EXPIRED, expired), Put(EXPIRED_AT, SERVER_NOW)) if expired else ()
        ops = (*counting(OUT, RETRY_OUT, brought), *noted, MapRemove(BROUGHT, (place,)))
        return Update(self._delayed.control, ops, Bound(_UNCOUNTED, {"place": place}))

    def _count_brought(self, stored: Any) -> None:
        """Count the entries that an earlier pass has dropped: its process died before it did that, or a call failed.

        Two calls. Those that are still there will be brought by a later pass, which counts them.
        """
        brought = brought_in(stored)
        if brought is not None:
            ids = list(dict.fromkeys(one for some in brought.values() for one in some))
            records = read_each(self._store, [self._delayed.entry(one) for one in ids], "by", "cancelled")
            gone = {one for one, has in zip(ids, records, strict=True) if has is None or _is_dropped(has)}
            rows = self._store.repeat_many(
                [self._counting(at, gone.intersection(some)) for at, some in brought.items()]
            )
            if not any(map(is_for_good, rows.errors())):
                return
        log.error("%s is damaged: delayed messages of %s are counted wrongly", self._delayed.control, self.queue.name)
        self._store.repeat(Update(self._delayed.control, (Put(BROUGHT, None),)))  # else more and more would be noted

    # ---- one bucket

    def _empty(self, number: int, records: Sequence[Sequence[str]]) -> bool:
        """Move the messages of a bucket, record by record; whether none is left."""
        done = True
        for k, ids in enumerate(records):
            done = self._move(number, k, ids) and done
        k = len(records)
        while True:
            row = self._store.repeat_many([Update(self._delayed.bucket(number, k), _READ_IDS)])[0]
            if isinstance(row, NotFound):
                self._records[number] = k
                return done
            done = self._move(number, k, self._ids(number, row)) and done
            k += 1

    def _move(self, number: int, k: int, ids: Sequence[str]) -> bool:
        """Publish these messages, then drop them here; return whether all are gone.

        They are marked first: a marked message cannot be cancelled any more, and a cancelled one is not marked. They
        are published through the ledger, so a process that was paused or died in between, and starts again, publishes
        none a second time. What will be dropped is noted before it is published, so that the next leader counts it if
        this process dies before it does: a message may kill the process that has brought it.
        """
        if not ids:
            return True
        self.queue.check_there()  # it was listed up to a minute ago
        delayed = self._delayed
        guard = Bound(_DUE, {"end": number * WIDTH})
        taken, failures = self._store.repeat_many([Update(delayed.entry(one), _TAKE, guard) for one in ids]).sift(ids)
        gone = {one for one, row in failures.items() if isinstance(row, NotFound)}
        # Or moved: their entries stay for a while, so that no late request makes them again. Or they are due later.
        cancelled = {one for one, row in failures.items() if isinstance(row, Refused)}
        expired: set[str] = set()
        wanted: dict[str, KeyedMessage] = {}
        found = {one: Entry.of(bins) for one, (bins,) in taken.items()}
        # By the time of its own record: that of the control record stands still where the clock was set back.
        late = {one for one, (bins,) in taken.items() if self._has_expired(found[one], bins["moving"])}
        foreign = {one for one, entry in found.items() if not entry.is_of(delayed.group)}
        # Of those that go with an update only the ones are published whose update was applied.
        unsure = {one: entry for one, entry in found.items() if entry.unsure}
        settled = self._conditions.settle(unsure, self._now, late)
        failures |= settled.failed | self._conditions.delete_records(
            {one: entry for one, entry in found.items() if one not in unsure or one in settled.sure}
        )
        expired |= set(settled.never)
        for one in in_order({one: entry for one, entry in found.items() if one not in failures}):
            entry = found[one]
            if one in settled.never or one in settled.later:
                continue
            if entry.message is None or one in foreign or one in late:
                expired.add(one)
            else:
                message = replace(entry.message, known=True) if was_handed_out(one, entry.message) else entry.message
                wanted[one] = KeyedMessage(f"{one}/{entry.by}", message, self._shard(entry))
        place = f"{number}/{k}"
        note = Update(delayed.control, (MapPut(BROUGHT, place, sorted((wanted.keys() | expired) - foreign)),))
        if expired and not wanted:
            self._store.repeat_many([note])
        moved, unmoved = publish_unless_there(
            self.queue, list(wanted.values()), MEMORY, scope=SCOPE, beside=[note]
        ).sift(wanted)
        stays = cancelled if cancelled and not self._leave_batches(sorted(cancelled)) else set[str]()
        expired |= moved.keys()
        # One that could not be dropped stays in the bucket: the next look finds it published, and drops it.
        kept = self._drop({one: delayed.dropping(one, found[one], taken[one][0]["moving"]) for one in expired})
        expired -= kept.keys()
        refused = [one for one, row in unmoved.items() if is_for_good(row) and not row.details.get("doubt")]
        self._unmark({one: taken[one][0]["moving"] for one in refused})
        failures |= unmoved | kept
        if dead := (late & expired) - foreign:
            lost = counted(len(dead), "delayed message")
            log.warning("%s of %s expired before anybody delivered them: no upkeep ran", lost, self.queue.name)
        put_off = self._put_off({one: row for one, row in failures.items() if one not in gone | cancelled})
        put_off |= self._asked_again(settled.later)
        over = (expired | gone | cancelled | put_off) - stays
        if over:
            rows = [Update(delayed.bucket(number, k), (MapRemove(IDS, tuple(sorted(over))),))]
            # What it has dropped: an id may be in two buckets, and who cancels an entry counts it. Where that is not
            # known of one, the note stays, and the next look counts them all.
            if expired and not any(isinstance(row, OutcomeUnknown) for row in kept.values()):
                rows.append(self._counting(place, expired - foreign, len(dead)))
            if gone | cancelled:
                rows.append(delayed.told_no_more(gone | cancelled))
            self._store.repeat_many(rows)
        return len(over) == len(set(ids))

    def _drop(self, updates: Mapping[str, Update]) -> dict[str, LatchworkError]:
        """Drop entries by these updates; return the errors of those that stay. One call."""
        names = sorted(updates)
        _, failed = self._store.repeat_many([updates[one] for one in names]).sift(names)
        return {one: failure for one, failure in failed.items() if not isinstance(failure, NotFound)}

    def _leave_batches(self, cancelled: Sequence[str]) -> bool:
        """Take cancelled messages, of these, out of their batches. False if the store failed: the next look tries it
        again.

        The process that cancelled them may have died before it did this.
        """
        keys = [self._delayed.entry(one) for one in cancelled]
        entries = [Entry.of(one.bins) for one in readable(read_each(self._store, keys, "batch", "cancelled")) if one]
        try:
            self._delayed.counting.gone([entry.batch for entry in entries if entry.cancelled is not None])
        except LatchworkError as failure:
            if not is_for_good(failure):
                return False
            log.warning("cancelled messages of %s stay in their batches: %s", self.queue.name, failure)
        return True

    def _unmark(self, marks: Mapping[str, int]) -> None:
        """Take back the marks of messages that the queue has refused for good, so that they are found, and can be
        discarded, until they are tried again. One call, or none.

        marks: their `moving`. If another leader has marked one since, that may be publishing it, and its mark stays.
        """
        if marks:
            self._store.repeat_many([
                Update(self._delayed.entry(one), _UNMARK, Bound(_IS_MARKED, {"mark": mark}))
                for one, mark in marks.items()
            ])  # fmt: skip

    def _put_off(self, failures: Mapping[str, LatchworkError]) -> set[str]:
        """Postpone messages that cannot be moved, so that the others do not wait for them; return their ids.

        A message is not postponed if only the store failed: the next look tries it again.
        """
        bad = {one: failure for one, failure in failures.items() if is_for_good(failure)}
        if not bad:
            return set()
        for one, failure in bad.items():
            log.error(
                "the delayed message %s of %s cannot be moved, which is tried again in %d s: %s",
                one, self.queue.name, LATER // 1000, failure,
            )  # fmt: skip
        return set(bad) if self._delayed.enter_again(list(bad), int(self._guess()) + LATER) is None else set()

    def _asked_again(self, later: Mapping[str, int]) -> set[str]:
        """Put ids into the buckets of these times, in ms; return those that are there."""
        at: dict[int, list[str]] = {}
        for one, moment in later.items():
            at.setdefault(moment, []).append(one)
        return {one for moment, some in at.items() if self._delayed.enter_again(some, moment) is None for one in some}

    def _has_expired(self, entry: Entry, now: int) -> bool:
        expiry = self.queue.config.message_expiry.total_seconds() * 1000
        return bool(entry.due) and entry.due + expiry < now

    def _shard(self, entry: Entry) -> int:
        pointers = self.queue.pointers
        if 0 <= entry.shard < pointers.shards:
            return pointers.home(entry.shard)
        self._turn += 1
        return pointers.home(self._turn // SPREAD)
