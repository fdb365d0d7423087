"""What both kinds of latch share: counting, reading, waiting.

A latch is one record with a counter for each farm. Every count is exactly-once: by its party (a Spark partition, a
job) where one is named, else by a token (docs/protocols.md P1, P8), so a lost reply never counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from ...deadline import Deadline
from ...errors import InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused
from ...inputs import checked_kind, checked_timeout, checked_whole, farm_or_default
from ...retry import LATCH_POLICY, Poll, RetryPolicy, outlive
from ...store.connect import as_store
from ...store.model.ops import MapGet, Op, Put, Read
from ...store.port import Exists, Record, RecordStore
from ..presence import Alarm, Group
from ..waiting import told
from . import layout
from .layout import By, bins_of
from .progress import ProgressBar
from .watch import LatchProgress, Looks, by_farm, progress_of

LATCH_POLL = Poll(low=0.005, high=0.052, factor=2.5)
"""At most 25 reads a second, and half of all releases seen within 26 ms."""
L = TypeVar("L", bound="Latch")
T = TypeVar("T")


class LatchLevel(Enum):
    """Which counters decide: this farm's own (`DC`), or the sum over all farms (`XDC`)."""

    DC = "dc"
    XDC = "xdc"


class Latch:
    """What both kinds of latch share. Handles are cheap, safe to share between threads, and pickle with their store."""

    _nonce: str | None = None
    _identified = False
    _expected: tuple[str | int, ...] = ()

    def __init__(
        self,
        store: RecordStore,
        client_id: str,
        latch_id: str,
        *,
        farm_id: str | None,
        level: LatchLevel,
        ttl: int,
        set_suffix: str,
        policy: RetryPolicy,
        farms: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(level, LatchLevel):
            raise InvalidRequest(f"level is {level!r}; it must be LatchLevel.DC or LatchLevel.XDC")
        self._store = as_store(store).with_policy(checked_kind("policy", policy, RetryPolicy))
        self._key = layout.latch_key(client_id, latch_id, set_suffix)
        self._farm = layout.checked_farm(farm_or_default(farm_id))
        self._farms = layout.checked_farms(farms)
        self._level, self._ttl = level, layout.checked_ttl(ttl)
        if self._farms and level is LatchLevel.DC:
            raise InvalidRequest(f"farms={list(self._farms)} at level DC: name farms only with level=LatchLevel.XDC")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key.name!r}, farm={self._farm!r}, level={self._level.value})"

    @classmethod
    def get(
        cls: type[L],
        store: RecordStore,
        client_id: str,
        latch_id: str,
        *,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 3600,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> L:
        """A handle on a latch that was, or will be, created elsewhere. No I/O.

        `farm_id`: whose counter this handle counts; default $LATCHWORK_FARM, else "local". `ttl`: seconds that each
        write gives the record to live. `set_suffix`: as it was created with. `policy`: how often, and for how long, a
        call is tried again.
        """
        return cls(
            store, client_id, latch_id, farm_id=farm_id, level=level, ttl=ttl, set_suffix=set_suffix, policy=policy
        )

    # ---- counting

    def count_down(self, n: int = 1, *, party: str | int | None = None) -> int:
        """Count down by `n`, exactly once; what remains in this farm. One store call.

        A `party` counts once, however often and from however many processes it is repeated; a repeat changes nothing.
        Without a party, each *call* counts once. At DC level the counter stops at zero.

        Raises `NotFound` where the latch was never created for this farm, was deleted (and perhaps made again) or has
        expired; `OutcomeUnknown` where the count may have been applied (with a party, calling again is harmless).
        """
        checked_whole("n", n, 1, layout.MAX_COUNT)
        floor = self._level is LatchLevel.DC
        if party is not None:
            return self._count_party(By.FLOORED if floor else By.ADDING, n, layout.checked_party(party))
        return self._count_to_floor(n) if floor else self._count(By.ADDING, -n)

    def _count_to_floor(self, n: int) -> int:
        """Nearly always there is enough to take from, and a plain addition is the cheapest update there is.

        Where there is not, the count goes on under the same token: the first request, should it be delivered once more
        when the count has risen again, finds it.
        """
        try:
            return self._once(By.TAKING, -n)
        except Refused as refusal:
            return self._count(By.FLOORED, -n, token=refusal.details["token"])

    def _count(self, by: By, change: int, token: bytes | None = None) -> int:
        try:
            return self._once(by, change, token)
        except Refused:
            raise self._gone() from None

    def _once(self, by: By, change: int, token: bytes | None = None) -> int:
        nonce = self._identity()
        # Not of the nonce itself: latches of the same size share the form, which takes longer to make than a count.
        form = layout.counted_once(self._farm, nonce is None, layout.token_capacity(nonce), self._ttl, by)
        return int(self._store.once(form.fill(self._key, nonce=nonce, n=-change, change=change), token=token)[0])

    def _count_party(self, by: By, n: int, party: str | int) -> int:
        bins, nonce = bins_of(self._farm), self._identity()
        form = layout.counted_by_party(self._farm, nonce is None, self._ttl, by)
        try:
            # The party is the token: a repeat of an attempt in doubt finds it and is refused.
            update = form.fill(self._key, nonce=nonce, party=party, n=n, change=-n)
            return int(self._store.repeat(update)[0])
        except Refused as refusal:
            reads = (Read(bins.count), Read(bins.id), MapGet(bins.done, party))
            remaining, ident, counted = self._read_after(refusal, lambda: self._store.operate(self._key, *reads))
            if remaining is None or ident != nonce or counted is None:
                raise self._gone() from None
            return int(remaining)

    def _identity(self) -> str | None:
        """The nonce of the latch that this handle means: known from `create`, else read with the first count."""
        if not self._identified:
            bins = bins_of(self._farm)
            record = self._store.get(self._key, bins.count, bins.id)
            if record is None or bins.count not in record.bins:
                raise self._gone()
            self._nonce, self._identified = record.bins.get(bins.id), True
        return self._nonce

    def _gone(self) -> NotFound:
        return NotFound(
            f"no latch {self._key.name!r} for farm {self._farm!r} that this handle means: it was never created, was "
            "deleted (and perhaps made again) or has expired; create it, or get a new handle",
            key=self._key,
        )

    # ---- reading

    def count(self) -> int:
        """What remains: this farm's counter at DC level, the sum over all farms at XDC. One read.

        Raises `NotFound`: a latch that has expired never reads as released.
        """
        return self.progress().remaining

    def counts(self) -> dict[str, int]:
        """The counters by farm, whatever the level. One read. Raises `NotFound`."""
        return by_farm(self._read_record(), layout.COUNT)

    def progress(self) -> LatchProgress:
        """The counters that decide at this level, in one read. Raises `NotFound`."""
        if self._level is LatchLevel.DC:
            counts = by_farm(self._read_record(bins_of(self._farm).count), layout.COUNT)
            if not counts:
                raise self._gone()
            return LatchProgress(counts, sum(counts.values()))
        progress = progress_of(self._read_record())
        if not progress.counts and not progress.absent_farms:
            raise self._gone()  # a record without a counter is no latch, and its sum of nothing no release
        return progress

    def wait(
        self,
        timeout: float | None = None,
        *,
        progress: bool | Callable[[LatchProgress], None] | None = None,
        alive: Group | None = None,
    ) -> bool:
        """Wait until the latch is released; True then, False once `timeout` seconds are over (None = for ever).

        It reads the counters again and again, after 5 to 52 ms: at most 25 reads a second. `progress=True` draws a bar
        on stderr where that is a terminal; a function is called with a `LatchProgress` whenever the counters changed.
        alive: a group that the parties are members of, by their names: where one that has not counted dies, this raises
        `PartyLost` within the lease of that one, instead of waiting in vain. Two reads a second more.
        A store that is away is asked again until the time is over, so an outage that is shorter ends no wait.
        Raises `NotFound` when the latch is deleted or expires meanwhile: that never reads as released. Raises
        `Unavailable` where the time is over and the last look failed: nobody knows then whether it is released.
        Interruptible.
        """
        timeout = checked_timeout(timeout)
        seams = self._store.seams
        bar = ProgressBar(self, seams) if progress is True else None
        tell = bar.update if bar else progress or None
        look = self.progress if self._level is LatchLevel.DC else Looks(self._store, self._key, self.progress)
        seen: list[LatchProgress] = []
        alarm = (
            None if alive is None else Alarm(checked_kind("alive", alive, Group), farms=self._level is LatchLevel.XDC)
        )

        def released() -> bool | None:
            now = outlive(seams, deadline, look)
            if callable(tell) and (not seen or seen[-1] != now):
                seen[:] = [now]
                tell(now)
            if alarm is not None and not now.released:
                alarm.check(self._waited_for, repr(self))
            return now.released or None

        try:
            with Deadline(seams, timeout) as deadline:
                return told(seams, "latch", lambda: LATCH_POLL.until(seams, released, timeout=timeout)) or False
        finally:
            if bar:
                bar.close()

    def parties(self) -> set[Any]:
        """The parties that have counted: their names at DC level, `"<farm>/<party>"` of all farms at XDC. One read."""
        record = self._read_record()
        if self._level is LatchLevel.DC:
            return set(record.bins.get(bins_of(self._farm).done, {}))
        return {f"{farm}/{party}" for farm, done in by_farm(record, layout.DONE).items() for party in done}

    def missing(self, expected: Iterable[Any] | None = None, *, lost_in: Group | None = None) -> set[Any]:
        """The expected parties that have not counted; default: those that `create(parties=...)` named. One read.

        A handle that knows no names (it was made by `get`, or with a count) must be given them: else the answer is
        empty whoever has not counted.  lost_in: of these only who died, by that group; one read more.  Raises
        `InvalidRequest` where `expected` is no list of names, and `NotFound`.
        """
        if expected is None:
            expected = self._expected
            if self._level is LatchLevel.XDC:
                expected = [f"{self._farm}/{party}" for party in expected]
        absent = layout.expected_parties(expected) - self.parties()
        if lost_in is None:
            return absent
        lost, prefix = checked_kind("lost_in", lost_in, Group).lost(), ""
        if self._level is LatchLevel.DC:
            prefix = f"{self._farm}/"
        return {party for party in absent if f"{prefix}{party}" in lost}

    def _waited_for(self, lost: set[str]) -> set[str]:
        """Those of the lost that have not counted; at DC level only parties of this latch, where it knows them."""
        dead = lost - {str(party) for party in self.parties()}
        return (
            dead & {str(party) for party in self._expected} if self._expected and self._level is LatchLevel.DC else dead
        )

    def delete(self) -> bool:
        """Delete the latch with the counters of all farms; False where it was gone, or is not the one created here.

        Waiters get `NotFound`. Counts that arrive late are refused, also when the latch is made again.
        """
        try:
            nonce = self._identity()
        except NotFound:
            nonce = None  # this farm has no counter; there may be those of others
        guard = None if nonce is None else bins_of(self._farm).is_mine.bind(nonce=nonce)
        try:
            return self._store.delete(self._key, when=guard, repeatable=True)
        except Refused:
            return False

    def _read_after(self, refusal: Refused, read: Callable[[], T]) -> T:
        """What the read finds; where it fails, and an attempt before the refusal was in doubt, nobody knows."""
        try:
            return read()
        except LatchworkError as failure:
            if not refusal.details["doubt"] or isinstance(failure, NotFound):
                raise
            raise OutcomeUnknown(
                f"the update of latch {self._key.name!r} may have been applied: an attempt was not answered, and the "
                "record could not be read afterwards; read the latch before going on",
                key=self._key,
            ) from failure

    def _read_record(self, *bins: str) -> Record:
        record = self._store.get(self._key, *bins)
        if record is None:
            raise self._gone()
        return record

    # ---- creating

    def _expect(self, count: int | None, parties: Iterable[str | int] | None) -> int:
        """The count to begin with, by either of the two."""
        if parties is None:
            if count is None:
                raise InvalidRequest("neither count nor parties is given: say how many times the latch is counted down")
            return checked_whole("count", count, 0, layout.MAX_COUNT)
        self._expected = layout.checked_parties(parties)
        if count is not None and count != len(self._expected):
            raise InvalidRequest(f"count is {count} and parties names {len(self._expected)}: give one of the two")
        return len(self._expected)

    def _create(self, count: int, capacity: int) -> bool:
        """Create this farm's counter; False where it is there already."""
        bins = bins_of(self._farm)
        nonce = layout.new_nonce(self._store.seams.unique(), capacity)
        ops: list[Op] = [Put(bins.count, count), Put(bins.id, nonce)]
        if self._farms:
            ops.append(Put(bins.farms, list(self._farms)))
        try:
            self._store.operate(
                self._key, *ops, when=bins.is_free, exists=Exists.ANY, or_absent=True, ttl=self._ttl,
                repeatable=True,
            )  # fmt: skip
        except Refused as refusal:
            # The nonce is the token: where it stands in the record, an attempt whose reply was lost has done it.
            record = self._read_after(refusal, lambda: self._store.get(self._key, bins.id))
            if record is None or record.bins.get(bins.id) != nonce:
                return False
        self._nonce, self._identified = nonce, True
        return True
