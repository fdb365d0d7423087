"""Latches: wait until a given number of things have happened, in one data centre or in several ("farms").

A latch is one record with a counter for each farm. Every count is applied exactly once: per party (a Spark partition,
a job) if one is named, else per token (docs/protocols P1, P8). So a lost reply never counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeVar, overload

from ...deadline import Deadline
from ...errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    Unreadable,
)
from ...forks import called
from ...inputs import checked_callable, checked_kind, checked_timeout, checked_whole, farm_or_default, is_int
from ...plain import one_line, shown
from ...retry import LATCH_POLICY, Poll, RetryPolicy, may_pass, outlive
from ...store.connect import as_store
from ...store.decode import damaged
from ...store.model.ops import Add, Compute, MapGet, Op, Put, Read
from ...store.port import KEEP, Exists, Record, RecordStore
from ..farms import checked_farm, checked_ttl
from ..presence.presence import Alarm, Group
from ..waits import INFINITY, Watch, measured
from . import layout
from .layout import CountMode, Names, bins_of
from .progress import ProgressBar
from .watch import DcReads, LatchProgress, XdcReads, by_farm, counts_of, progress_of

__all__ = ["CountDownLatch", "CountUpDownLatch", "Latch", "LatchLevel", "LatchProgress"]

TTL = 43_200
"""Default time to live of a latch, in seconds: longer than a night's work, and over before the next night."""
LATCH_POLL = Poll(low=0.008, high=0.028, factor=2.0)
"""At most 40 reads a second and process, and half of all releases seen within 14 ms."""
LAST_LOOKS, LOOK_AGAIN = 1.0, 0.5
"""Seconds before the end of a latch, in which those who wait for it read who is missing; and between two such reads."""
NAMED = 8
"""Parties that an error names."""
L = TypeVar("L", bound="Latch")
P = TypeVar("P", bound=str | int)
T = TypeVar("T")


class LatchLevel(Enum):
    """The counters that decide when a latch is released: this farm's own (`DC`), or the sum over all farms (`XDC`)."""

    DC = "dc"
    XDC = "xdc"


class Latch:
    """The common part of both kinds of latch. Handles are cheap, thread-safe, and pickle with their store.

    A latch may be deleted and created again under one id. A handle means one of these latches, by its nonce.
    """

    _least: int | None = None
    """The count of a latch that is created with neither a count nor parties; None if that is an error."""
    _nonce: str | None = None
    _names: Names | None = None
    _identified = False
    _was_there = False
    """Whether this handle has read the latch: if it is not there later, it has ended."""
    _lives = -1
    """Seconds that the latch had left to live when it was read last; -1 = no end, or not read."""
    _left: str = ""
    """Which of its parties had not counted shortly before its end, for an error."""

    def __init__(
        self,
        store: RecordStore,
        client_id: str,
        latch_id: str,
        *,
        farm_id: str | None,
        level: LatchLevel,
        ttl: int | None,
        set_suffix: str,
        policy: RetryPolicy,
        farms: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(level, LatchLevel):
            raise InvalidRequest(f"level is {shown(level)}; it must be LatchLevel.DC or LatchLevel.XDC")
        self._store = as_store(store).with_policy(checked_kind("policy", policy, RetryPolicy))
        self._key = layout.latch_key(client_id, latch_id, set_suffix)
        self._client, self._id = client_id, latch_id
        self._farm = checked_farm(farm_or_default(farm_id))
        self._farms = layout.checked_farms(farms)
        self._level, self._ttl = level, checked_ttl(ttl)
        if self._farms and level is LatchLevel.DC:
            raise InvalidRequest(f"farms={list(self._farms)} at level DC: name farms only with level=LatchLevel.XDC")

    def __repr__(self) -> str:
        level = self._level.value
        return f"{type(self).__name__}({self._id!r}, client={self._client!r}, farm={self._farm!r}, level={level})"

    @property
    def _title(self) -> str:
        """The latch as errors name it."""
        return f"latch {shown(self._id)} of client {shown(self._client)}"

    @classmethod
    def create(
        cls: type[L],
        store: RecordStore,
        client_id: str,
        latch_id: str,
        count: int | None = None,
        *,
        parties: Iterable[str | int] | None = None,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = TTL,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> L:
        """Create this farm's counter with `count`, or with one count for each of `parties`. One store call.

        A `CountUpDownLatch` without both starts at 0.

        parties: the names of the parties, all text or all whole numbers, at most 100,000 and 400,000 bytes. They are
            stored in the latch: then no other party can count, and `missing()` knows them.
        farms: at XDC level, the farms that must create their counter before the latch can be released. Default: the
            farms that have a counter, which is safe only if one coordinator creates the whole count. Refused at DC
            level, where only this farm's counter decides.
        ttl: time to live in seconds, from the last count of a handle that creates it. Waiting for a latch that expires
            raises `NotFound`; expiry never releases it.
        set_suffix: the latch is stored in the set `D_LTCH#<set_suffix>`. Every handle must use one suffix.
        policy: how often, and for how long, a call is tried again.

        Raises `AlreadyExists` if this farm's counter exists; `OutcomeUnknown` if this call may have created it;
        `InvalidRequest` before any I/O.
        """
        latch = cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy,
            farms=farms,
        )  # fmt: skip
        latch._begin(count, parties, ttl=ttl, join=False)
        return latch

    @classmethod
    def get_or_create(
        cls: type[L],
        store: RecordStore,
        client_id: str,
        latch_id: str,
        count: int | None = None,
        *,
        parties: Iterable[str | int] | None = None,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int | None = None,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> L:
        """Create the latch, or join it if this farm's counter exists. For a job that may be restarted.

        An existing counter is not changed, whatever has been counted. So a job that starts over needs a new latch id
        for each run: the latch of an earlier run may be released already. One store call, or two if the counter exists.

        ttl: default 43,200 s (12 hours) for a new latch; an existing one keeps its remaining time. All others: see
            `create`.

        Raises `AlreadyExists` if the latch exists with other parties, and what else `create` raises.
        """
        latch = cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy,
            farms=farms,
        )  # fmt: skip
        latch._begin(count, parties, ttl=TTL if ttl is None else ttl, join=True)
        return latch

    @classmethod
    def get(
        cls: type[L],
        store: RecordStore,
        client_id: str,
        latch_id: str,
        *,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int | None = None,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> L:
        """Return a handle on a latch that another process creates. No I/O.

        farm_id: the farm whose counter this handle changes; default $LATCHWORK_FARM, else "local".
        ttl: the record's time to live in seconds, set by each count; default: counts do not change it, so the creator
            decides.
        set_suffix: must be the one that the latch is created with.
        policy: how often, and for how long, a call is tried again.
        """
        return cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy
        )

    # ---- counting

    def count_down(self, n: int = 1, *, party: str | int | None = None) -> int:
        """Count down by `n`, exactly once, and return the remaining count of this farm. One store call.

        A `party` counts once, however often and from however many processes it is repeated; a repeat changes nothing.
        Without a party, each *call* counts once. At DC level the counter stops at zero.

        Errors:
        `InvalidRequest` if the latch was created with named parties and this one is not among them, or if the kind of
            its name (text, whole number) differs from the parties that have counted.
        `NotFound` if the latch was never created for this farm, was deleted (and perhaps created again) or has expired.
        `OutcomeUnknown` if the count may have been applied. With a party, calling again is harmless.
        """
        checked_whole("n", n, 1, layout.MAX_COUNT)
        floor = self._level is LatchLevel.DC
        if party is not None:
            return self._count_party(CountMode.FLOOR if floor else CountMode.ADD, n, layout.checked_party(party))
        return self._count_to_floor(n) if floor else self._count(CountMode.ADD, -n)

    def _count_to_floor(self, n: int) -> int:
        """Count down by `n`, but not below zero.

        First try a plain addition, the cheapest update, guarded by "at least `n` remain": that is nearly always so. If
        it is refused, count with a floor under the first attempt's token: if the network delivers the first request
        again after the count has risen, the token makes it a repeat.
        """
        try:
            return self._once(CountMode.TAKE_IF_ENOUGH, -n)
        except Refused as refusal:
            return self._count(CountMode.FLOOR, -n, refusal)

    def _count(self, mode: CountMode, change: int, before: Refused | None = None) -> int:
        """before: the refusal of another form of this count, which goes on with its token, and with its doubt."""
        try:
            return self._once(mode, change, None if before is None else before.details["token"])
        except Refused as refusal:
            raise self._gone_after(before if before is not None and before.details["doubt"] else refusal) from None

    def _once(self, mode: CountMode, change: int, token: bytes | None = None) -> int:
        nonce = self._identity()
        # The form does not contain the nonce: latches of equal size share it, and making one takes longer than a count.
        form = layout.counted_once(self._farm, nonce is None, layout.token_capacity(nonce), self._ttl, mode)
        try:
            return int(self._store.once(form.fill(self._key, nonce=nonce, n=-change, change=change), token=token)[0])
        except NotFound:
            raise self._gone() from None

    def _count_party(self, mode: CountMode, n: int, party: str | int) -> int:
        bins, nonce, kind = bins_of(self._farm), self._identity(), layout.kind_of(party)
        if self._names is not None and party not in self._names:
            raise layout.not_named(party, self._names, self._key, self._title)
        form = layout.counted_by_party(self._farm, nonce is None, self._ttl, mode, kind)
        try:
            # The party is the token: a repeat of an attempt in doubt finds it and is refused.
            update = form.fill(self._key, nonce=nonce, party=party, n=n, change=-n)
            return int(self._store.repeat(update)[0])
        except NotFound as absent:
            raise self._gone_after(absent) from None
        except Refused as refusal:
            reads = (Read(bins.count), Read(bins.id), MapGet(bins.done, party), Compute(bins.first[kind]))
            try:
                read = self._read_after(refusal, lambda: self._store.operate(self._key, *reads))
            except NotFound:
                raise self._gone_after(refusal) from None
            remaining, ident, counted, of_one_kind = read
            if remaining is None or ident != nonce:
                raise self._gone_after(refusal) from None
            if counted is None and of_one_kind is None:
                raise InvalidRequest(
                    f"party {shown(party)} of the {self._title}: the parties that have counted in farm "
                    f"{shown(self._farm)} are named by {'whole numbers' if kind is str else 'text'}, and the Java "
                    "library cannot read both in one farm; name all alike",
                    key=self._key,
                ) from None
            if counted is None:
                raise self._gone() from None
            if not is_int(remaining):
                raise damaged(self._key, f"bin {bins.count} is not a number") from None
            return int(remaining)

    # ---- reading

    def count(self) -> int:
        """Return the remaining count: of this farm at DC level, the sum over all farms at XDC level. One read.

        Raises `NotFound`: an expired latch never reads as released.
        """
        return self.progress().remaining

    def counts(self) -> dict[str, int]:
        """Return the counters of all farms, by farm, at either level. One read. Raises `NotFound`."""
        return counts_of(self._read_record())

    def progress(self) -> LatchProgress:
        """Return the counters that decide at this level. One read. Raises `NotFound`."""
        return self._look({})

    def _look(self, ids: dict[str, str]) -> LatchProgress:
        """Read the progress, and add the nonces of the farms to `ids`. Raises `NotFound` if one of them has changed."""
        return self._progress(ids, self._store.get(self._key, *self._deciding()))

    def _deciding(self) -> tuple[str, ...]:
        """Return the bins that decide at this level; none = all."""
        bins = bins_of(self._farm)
        return (bins.count, bins.id) if self._level is LatchLevel.DC else ()

    def _progress(self, ids: dict[str, str], found: Record | None) -> LatchProgress:
        """Return the progress in a record as it was read, and add the nonces of the farms to `ids`. Raises `NotFound`
        if one of them has changed.
        """
        record = self._checked(found)
        progress = progress_of(record)
        if not progress.counts and not progress.absent_farms:
            raise self._gone()  # a record without a counter is not a latch; a sum of no counters is not a release
        now = by_farm(record, layout.ID)
        if not ids.items() <= now.items():
            raise self._made_again()
        ids |= now
        self._was_there, self._lives = True, record.ttl
        return progress

    def wait(
        self,
        timeout: float | None = None,
        *,
        progress: bool | Callable[[LatchProgress], None] | None = None,
        create_timeout: float | None = 0,
        alive: Group | None = None,
    ) -> bool:
        """Wait until the latch is released. Return True then, and False after `timeout` seconds.

        It reads the counters every 8 to 28 ms: at most 40 reads a second, for all waits of this process together. If
        the store is unavailable, it keeps asking until the timeout, so a shorter outage does not end the wait.
        Interruptible.

        timeout: seconds; None = no limit.
        progress: True draws a bar on stderr if that is a terminal; a function is called with a `LatchProgress` whenever
            the counters have changed.
        create_timeout: seconds, within `timeout`, to wait for a latch that does not exist yet.
        alive: a group whose members are the parties, by name. If a party that has not counted dies, this raises
            `PartyLost` within that member's lease. Two more reads a second.

        Raises `NotFound` if the latch is not created in time, or is deleted (and perhaps created again) or expires
        during the wait: that is never a release. The error of one that expired names the parties that were missing a
        second before, if they were named. Raises `Unavailable` if the last read before the timeout failed: it is then
        unknown whether the latch is released.
        """
        timeout, create_timeout = checked_timeout(timeout), checked_timeout(create_timeout, "create_timeout")
        seams = self._store.seams
        seams.may_wait(f"{type(self).__name__}.wait", timeout)
        created_by = None if create_timeout is None else seams.monotonic() + create_timeout
        bar = ProgressBar(self, self._total, seams) if progress is True else None
        report = (
            bar.update
            if bar
            else None
            if progress is None or progress is False
            else checked_callable("progress", progress)
        )
        look = self._reads(every=bool(report))
        seen: list[LatchProgress] = []
        alarm = None if alive is None else Alarm(alive, self._unfinished, repr(self))
        there: set[bool] = set()  # whether the latch was seen: if it disappears after that, the wait ends
        ends_at = INFINITY  # when to read who is missing

        def released() -> bool | None:
            nonlocal ends_at
            try:
                now = outlive(seams, deadline, look)
            except NotFound:
                if there or self._identified or (created_by is not None and seams.monotonic() >= created_by):
                    raise
                return None
            there.add(True)
            if callable(report) and (not seen or seen[-1] != now):
                seen[:] = [now]
                called(report, now)
            if alarm is not None and not now.released:
                # After a loss it reads the latch once more; an outage may have begun.
                outlive(seams, deadline, lambda: alarm.check(deadline), passing=may_pass)
            if not now.released:
                ends_at = seams.monotonic() + self._before_its_end(now)
            return now.released or None

        def due() -> float:
            until_created = created_by or INFINITY if not there else INFINITY
            return min(look.due(), alarm.due if alarm else INFINITY, until_created, ends_at)

        try:
            with Deadline(seams, timeout) as deadline:
                wait = partial(look.watch.until, released, timeout=timeout, due=due)
                return measured(seams, "latch", wait) or False
        finally:
            if bar:
                bar.close()

    def _before_its_end(self, now: LatchProgress) -> float:
        """Keep who is missing from a latch that is about to expire, as nobody can say that afterwards; return the
        seconds until it is time for that, or to look again. One read in the last seconds of the latch's life.
        """
        if not 0 <= self._lives <= LAST_LOOKS:
            self._left = ""
            return self._lives - LAST_LOOKS if self._lives >= 0 else INFINITY
        with suppress(LatchworkError):  # the wait itself meets it
            record = self._read_record()
            missing = sorted(map(str, self._named(record) - self._counted(record)))
            more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
            names = f"; missing: {', '.join(map(shown, missing[:NAMED]))}{more}" if missing else ""
            self._left = f", with {now.remaining:,} to go{names}"
        return LOOK_AGAIN

    def _total(self) -> int:
        """Return the whole count, for a progress bar: the remaining count and the counts of the parties. One read."""
        record = self._read_record()
        bins = bins_of(self._farm)
        is_dc = self._level is LatchLevel.DC
        remaining = [record.bins.get(bins.count)] if is_dc else by_farm(record, layout.COUNT).values()
        done = [record.bins.get(bins.done, {})] if is_dc else by_farm(record, layout.DONE).values()
        counts = [*remaining, *(count for parties in done for count in self._parties_in(parties).values())]
        return sum(count for count in counts if is_int(count))

    def _reads(self, *, every: bool) -> DcReads | XdcReads:
        """Return the reads of one wait. every: whether it wants to see each change, and not only the release."""
        watch, ids = Watch(self._store, self._key, self._deciding(), LATCH_POLL), dict[str, str]()
        if self._level is LatchLevel.XDC:
            return XdcReads(watch, partial(self._look, ids), self._store.seams)
        return DcReads(watch, bins_of(self._farm).count, partial(self._progress, ids), every=every)

    def parties(self) -> set[str | int]:
        """Return the parties that have counted: names at DC level, `"<farm>/<party>"` of all farms at XDC. One read."""
        return self._counted(self._read_record())

    @overload
    def missing(self, expected: None = None, *, lost_in: Group | None = None) -> set[str | int]: ...
    @overload
    def missing(self, expected: Iterable[P], *, lost_in: Group | None = None) -> set[P]: ...
    def missing(self, expected: Iterable[Any] | None = None, *, lost_in: Group | None = None) -> set[Any]:
        """Return the parties that have not counted. One read.

        At XDC level as `"<farm>/<party>"`, of all farms whose parties were named.

        expected: the parties to compare with; default: the parties that the latch was created with. A latch created
            with a count has no names: without `expected` the result is then always empty.
        lost_in: a group; return only the parties that died as members of it. One more read.

        Raises `InvalidRequest` if `expected` is not a list of names, and `NotFound`.
        """
        named = None if expected is None else layout.expected_parties(expected)
        group = None if lost_in is None else checked_kind("lost_in", lost_in, Group)
        record = self._read_record()
        absent = (self._named(record) if named is None else named) - self._counted(record)
        if group is None:
            return absent
        lost = self._members(group, group.lost())
        return {party for party in absent if str(party) in lost}

    def _unfinished(self, group: Group, lost: set[str]) -> set[str]:
        """Return the lost members that have not counted: only named parties, or all members if none were named."""
        record = self._read_record()
        lost = self._members(group, lost) - {str(party) for party in self._counted(record)}
        named = {str(party) for party in self._named(record)}
        return lost & named if named else lost

    def _members(self, group: Group, names: set[str]) -> set[str]:
        """Convert names of members to names of parties: at DC level only the group's own farm, without its prefix."""
        if self._level is LatchLevel.XDC:
            return names
        farm = f"{group.farm}/"
        return {name.removeprefix(farm) for name in names if name.startswith(farm)}

    def expected(self) -> Names | None:
        """Return the parties of this farm that the latch was created with; None if it was created with a count.

        A range if they are the whole numbers from 0 on. One read, or none after the handle has counted. After this
        call the handle means this latch, and no later one with its id. Raises `NotFound`.
        """
        self._identity()
        return self._names

    def delete(self) -> bool:
        """Delete the latch with the counters of all farms. False if it was gone, or is not the latch of this handle.

        Waiters get `NotFound`. Late counts are refused, even if the latch is created again.
        """
        try:
            nonce = self._identity()
        except (NotFound, Corrupt, Unreadable):
            nonce = None  # this farm has no counter, but others may have; or it is damaged, and this is the remedy
        guard = None if nonce is None else bins_of(self._farm).is_mine.bind(nonce=nonce)
        try:
            return self._store.delete(self._key, when=guard, repeatable=True)
        except Refused:
            return False

    def _counted(self, record: Record) -> set[str | int]:
        if self._level is LatchLevel.DC:
            return set(self._parties_in(record.bins.get(bins_of(self._farm).done, {})))
        counted = by_farm(record, layout.DONE)
        return {f"{farm}/{party}" for farm, done in counted.items() for party in self._parties_in(done)}

    def _parties_in(self, done: Any) -> Mapping[Any, Any]:
        """Return the parties that have counted, as keys. Raises `Corrupt`."""
        if not isinstance(done, Mapping):
            raise damaged(self._key, f"a bin {layout.DONE}* holds no parties")
        return done

    def _named(self, record: Record) -> set[str | int]:
        if self._level is LatchLevel.DC:
            return set(layout.names_in(record.bins, self._farm, self._key) or ())
        farms = by_farm(record, layout.NAMES)
        return {f"{farm}/{name}" for farm in farms for name in layout.names_in(record.bins, farm, self._key) or ()}

    # ---- which latch the handle means

    def _identity(self) -> str | None:
        """Return the nonce of the latch that this handle means: known from `create`, else read with the first count."""
        if not self._identified:
            bins = bins_of(self._farm)
            record = self._store.get(self._key, bins.count, bins.id, bins.names)
            if record is None or bins.count not in record.bins:
                raise self._gone()
            self._means(record)
        return self._nonce

    def _means(self, record: Record) -> None:
        """Bind the handle to the latch of this record, and to no later one with its id."""
        self._names = layout.names_in(record.bins, self._farm, self._key)
        self._nonce, self._identified = layout.nonce_in(record.bins, self._farm, self._key), True

    def _made_again(self) -> NotFound:
        return NotFound(
            f"the {self._title} in farm {self._farm!r} that this handle means was deleted, and perhaps made again "
            "since: get a new handle",
            key=self._key,
        )

    def _gone(self) -> NotFound:
        latch = f"{self._title} in farm {self._farm!r} of {self._store.where}"
        if self._identified or self._was_there:
            ttl = "" if self._ttl in (None, KEEP) else f", {self._ttl} s after its creator's last count"
            why = (
                f"the {latch} has ended: it was deleted (and perhaps made again), or has expired{ttl}{self._left}; "
                "create it with a ttl that covers the whole work"
            )
        else:
            why = (
                f"there is no {latch}: it was not created yet, or has another name, or has ended; "
                f"`latchwork latch list --client {one_line(self._client)}` lists the latches that there are"
            )
        return NotFound(why, key=self._key)

    def _gone_after(self, refusal: NotFound | Refused) -> LatchworkError:
        """Return the error of a count that found no latch: an earlier attempt of it, whose reply was lost, may have
        counted while the latch was there.
        """
        gone = self._gone()
        if not refusal.details.get("doubt"):
            return gone
        return OutcomeUnknown(f"the count may have been applied; {gone}", key=self._key)

    def _read_after(self, refusal: Refused, read: Callable[[], T]) -> T:
        """Read the record after a refusal. Raises `OutcomeUnknown` if the read fails and an earlier attempt of the
        refused update may have been applied.
        """
        try:
            return read()
        except LatchworkError as failure:
            if not refusal.details["doubt"] or isinstance(failure, NotFound):
                raise
            raise OutcomeUnknown(
                f"the update of the {self._title} may have been applied: an attempt was not answered, and the record "
                "could not be read afterwards; read the latch before going on",
                key=self._key,
            ) from failure

    def _read_record(self, *bins: str) -> Record:
        """Read these bins (the bin `id` must be among them), or all. Raises `NotFound`, also if it is a later latch."""
        return self._checked(self._store.get(self._key, *bins))

    def _checked(self, record: Record | None) -> Record:
        """Return the record that was read. Raises `NotFound` if there is none, or if it is a later latch."""
        if record is None:
            raise self._gone()
        if self._identified and record.bins.get(bins_of(self._farm).id) != self._nonce:
            raise self._made_again()
        return record

    # ---- creating

    def _begin(self, count: int | None, parties: Iterable[str | int] | None, *, ttl: int, join: bool) -> None:
        """Create this farm's counter, or `join` an existing one. Raises `AlreadyExists`."""
        self._names = None if parties is None else layout.checked_parties(parties)
        number = self._number(count)
        wanted, ttl = self._names, checked_ttl(ttl)
        tries = (self._create(number, ttl) for _ in range(self._store.policy.attempts))
        created = next((done for done in tries if done is not None), None)
        if created is None:
            raise Unavailable(f"others create and delete {self!r} all the time; try again later", key=self._key)
        if created:
            return
        if not join:
            raise AlreadyExists(
                f"{self!r} exists already; use .get_or_create() or .get() to join it, .delete() it first, or create "
                "one under another id",
                key=self._key,
            )
        if wanted is not None and self._names not in (None, wanted):
            raise AlreadyExists(
                f"{self!r} exists already, and was created for other parties, {len(self._names or ())} of them; "
                ".delete() it first, or take another id",
                key=self._key,
            )

    def _number(self, count: int | None) -> int:
        """Return the initial count: `count`, or the number of parties. Raises `InvalidRequest`."""
        if self._names is None:
            count = self._least if count is None else count
            if count is None:
                raise InvalidRequest("neither count nor parties is given: say how many times the latch is counted down")
            return checked_whole("count", count, 0, layout.MAX_COUNT)
        if count is not None and checked_whole("count", count, 0, layout.MAX_COUNT) != len(self._names):
            raise InvalidRequest(f"count is {count} and parties names {len(self._names)}: give one of the two")
        return len(self._names)

    def _create(self, count: int, ttl: int) -> bool | None:
        """Create this farm's counter. False if it exists already: the handle is then bound to the existing latch.
        None if that was deleted, or has expired, before it could be read.
        """
        bins = bins_of(self._farm)
        capacity = min(max(count, layout.MIN_TOKENS), layout.MAX_TOKENS) if self._least is None else layout.MAX_TOKENS
        nonce = layout.new_nonce(self._store.seams.unique(), capacity)
        alone = self._level is LatchLevel.DC  # across farms, counts of the Java library may be waiting for the counter
        ops: list[Op] = [Put(bins.count, count) if alone else Add(bins.count, count), Put(bins.id, nonce)]
        if self._farms:
            ops.append(Put(bins.farms, list(self._farms)))
        if self._names is not None:
            ops.append(Put(bins.names, layout.stored_names(self._names)))
        try:
            self._store.operate(
                self._key, *ops, when=bins.is_free if alone else bins.is_uncreated, exists=Exists.ANY, or_absent=True,
                ttl=ttl, repeatable=True,
            )  # fmt: skip
        except Refused as refusal:
            # The nonce is the token: if the record has it, an earlier attempt, whose reply was lost, has created it.
            reads = (bins.count, bins.id, bins.names)
            record = self._read_after(refusal, lambda: self._store.get(self._key, *reads))
            if record is None or bins.count not in record.bins:
                return None
            if record.bins.get(bins.id) != nonce:
                self._means(record)
                return False
        self._nonce, self._identified, self._ttl = nonce, True, ttl
        return True


class CountDownLatch(Latch):
    """A latch that only counts down. It also reads and writes the records of the Java library, without changing their
    layout. Handles are cheap, safe to share between threads, and pickle with their store.
    """


class CountUpDownLatch(Latch):
    """A latch that also counts up, while work is still being found. Handles are cheap, safe to share between threads,
    and pickle with their store.
    """

    _least = 0

    def count_up(self, n: int = 1) -> int:
        """Count up by `n`, exactly once, and return the remaining count of this farm. One store call.

        Raises what `count_down` raises. Not promised: if data centres replicate their stores to each other (XDR), a
        count-up that is still being shipped may arrive too late to keep the latch closed.
        """
        return self._count(CountMode.ADD, checked_whole("n", n, 1, layout.MAX_COUNT))
