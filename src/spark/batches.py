"""Once per batch: the work of a function of `foreachBatch`, done once for each batch (docs/protocols P20).

    def upsert(frame, batch_id):
        with once_per_batch(store, "orders", batch_id) as batch:
            if not batch.done:
                options = {"txnAppId": "orders", "txnVersion": batch.version}
                frame.write.format("delta").mode("append").options(**options).save(path)

Spark may run a batch again, and a driver that was thought dead may still run one. A record of the query says which
batch was done last and whose turn it is, and gives each batch a version. The sink is protected if it stores the version
together with what the batch writes, and refuses a version that is not above the stored one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..errors import (
    AlreadyExists,
    Corrupt,
    FencedOut,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
)
from ..inputs import checked_text, checked_whole
from ..plain import shown
from ..seams import SYSTEM
from ..store.connect import as_store
from ..store.decode import Counter
from ..store.model.expr import SERVER_NOW, Bin, Bound, Expr, If, Param, exists, largest, missing
from ..store.model.ops import Op, Put, Read
from ..store.port import KEEP, NEVER, Exists, Key, Record, RecordStore, Values, WithWrite
from ..typed import converted

BATCHES = "latchwork_batches"
"""The set of all queries."""
CHECKPOINT, RUN, EPOCH = "checkpoint", "run", "epoch"
CHECKPOINTS, RUNS = "checkpoints", "runs"
BASE, BEGUN, DONE = "base", "begun", "done"
MAX_NAME, MAX_BATCH = 500, 2**53
REMEMBERED = 64
"""Checkpoints, and runs of the present one, that the record remembers: they are refused once others have come."""
TAKEOVERS = 5
QUERY, GROUP = "sql.streaming.queryId", "spark.jobGroup.id"
"""The properties that Spark sets for the thread of a query: the id that its checkpoint keeps, and the id of this start
of it.
"""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_MINE = Bin(RUN, str).eq(Param("run", str)) & Bin(CHECKPOINT, str).eq(Param("checkpoint", str))
_UNCHANGED = Bin(EPOCH).eq(Param("epoch"))
_BEGUN = largest(Bin(BEGUN), Param("batch"))
_DONE = largest(Bin(DONE), Param("batch"))
_ABOVE = If(exists(BASE), largest(Bin(BASE) + Bin(BEGUN) + 1, SERVER_NOW * 1000), SERVER_NOW * 1000)
"""Above every earlier version of any batch, also if the record was lost: microseconds by the server."""


def once_per_batch(
    store: RecordStore, query_id: str, batch_id: int, *, checkpoint: str | None = None, run_id: str | None = None
) -> OncePerBatch:
    """Return a block that is done once for this batch of a query; use it with `with`, inside a `foreachBatch` function.

    `with` gives a `Batch`: skip the work if it is `done`, and store its `version` with what the work writes. When the
    block has ended without an error, the batch is done.

    query_id: the name of the query, which stays the same however often it is started, also from a new checkpoint; at
        most 500 bytes.
    batch_id: as Spark gives it to the function.
    checkpoint: distinguishes one checkpoint of the query from the next, in which batches count from 0 again; default:
        the query's id, which Spark sets for the driver's thread. Spark Connect does not set it: there, give the id in
        the file `metadata` of the checkpoint.
    run_id: distinguishes one start of the query from the next; default: as Spark sets it, else one of this process.

    `with` takes one call to the store and its end another; three more for the first batch of a run. Raises, with the
    batch not begun: `FencedOut` if a later run of the query has taken over, or one with a newer checkpoint;
    `InvalidRequest` if a later batch of this checkpoint is done already, so that this one may hold other rows than it
    did; and the store's errors. The end of the block raises `FencedOut` if another run has taken over meanwhile, and
    the store's errors: then the batch comes again with an equal version.

    Not promised: that the block runs once if the process ends within it. The version makes its effect single: it is
    equal each time the batch comes, so a sink that keeps it refuses the repeat, and a driver that was paused. Also not
    promised: that a checkpoint that was restored from an older copy is noticed with its first batch, or that a store
    that has lost the record knows which batch was done.
    """
    as_store(store)
    name = _checked_name("query_id", query_id)
    number = checked_whole("batch_id", batch_id, 0, MAX_BATCH)
    query, group = _of_this_thread()
    turn = BatchRun(
        name,
        number,
        _checked_name("checkpoint", (query or _own_checkpoint(name)) if checkpoint is None else checkpoint),
        _checked_name("run_id", (group or _of_this_process(os.getpid())) if run_id is None else run_id),
    )
    return OncePerBatch(store, turn)


class StoredQuery(Struct, frozen=True):
    """The bins of a query's record, with their limits. No batch is done while `done` is -1."""

    checkpoint: str | None = None
    run: str | None = None
    epoch: Counter | None = None
    base: Counter | None = None
    begun: Counter | None = None
    done: Annotated[int, Meta(ge=-1, le=MAX_BATCH)] | None = None
    runs: dict[str, Counter] = {}
    checkpoints: dict[str, Counter] = {}


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch, the checkpoint of the query that it belongs to, and the run of the query."""

    query: str
    batch: int
    checkpoint: str
    run: str

    @property
    def key(self) -> Key:
        """The key of the query's record."""
        return Key(BATCHES, self.query)

    def check_not_behind(self, done: int) -> None:
        """Raise `InvalidRequest` if a later batch of this checkpoint is done."""
        if self.batch < done:
            raise InvalidRequest(
                f"the batch {self.batch} of the query {shown(self.query)} comes after its batch {done} was done: the "
                "checkpoint was restored from an older copy, or was lost and `checkpoint` does not tell it from the "
                "one before; what the batch holds now may never have been written. Start from a new checkpoint (on "
                "Spark Connect: with its id as `checkpoint`), or under another query_id"
            )

    def stored(self, bins: Mapping[str, Any]) -> StoredQuery:
        """Return the query's record. Raises `Corrupt` for a bin of another type or out of range."""
        try:
            return converted({bin: value for bin, value in bins.items() if value is not None}, StoredQuery)
        except (msgspec.ValidationError, UnicodeError) as failure:
            raise self._damaged(str(failure)) from None

    def known(self, bin: str, value: int | None) -> int:
        """Return the bin's value. Raises `Corrupt` if the record has none."""
        if value is None:
            raise self._damaged(f"it has no bin {bin!r}")
        return value

    def _damaged(self, what: str) -> Corrupt:
        return Corrupt(
            f"the record {self.key} is damaged ({what}), so it is not known which batch was done: look in the sink "
            "which was the last, then delete the record; later versions go by the server's clock",
            key=self.key,
        )

    def bound(self, expr: Expr) -> Bound:
        """Return the expression with what this is."""
        return Bound(expr, {"run": self.run, "checkpoint": self.checkpoint, "batch": self.batch})


class OncePerBatch:
    """The block of one batch; see `once_per_batch`."""

    def __init__(self, store: RecordStore, turn: BatchRun) -> None:
        self._store, self._turn = store, turn
        self._batch: Batch | None = None

    def __enter__(self) -> Batch:
        """Begin the batch, and take the query over where this is a new run of it."""
        for _ in range(TAKEOVERS):
            try:
                self._batch = self._begun()
                return self._batch
            except (Refused, NotFound):
                self._take_over()
        raise FencedOut(f"other runs of the query {self._turn.query!r} take it over again and again: start only one")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Note that the batch is done, unless the block has raised."""
        batch, self._batch = self._batch, None
        if kind is None and batch is not None and not batch.done:
            self._note_done()

    def _begun(self) -> Batch:
        """Note that the batch has begun. One call. Raises `Refused` if another run, or none, has the query."""
        turn = self._turn
        begin = Put(BEGUN, turn.bound(_BEGUN))
        base, done = self._store.operate(
            turn.key, begin, Read(BASE), Read(DONE), when=turn.bound(_MINE), ttl=NEVER, repeatable=True
        )
        stored = turn.stored({BASE: base, DONE: done})
        base, done = turn.known(BASE, stored.base), turn.known(DONE, stored.done)
        turn.check_not_behind(done)
        return Batch(turn.query, turn.batch, base + turn.batch, done == turn.batch, self._store)

    def _take_over(self) -> None:
        """Make this run the present one, unless a later run has taken over. One read and one write.

        The write is guarded: it applies only if no run has taken over since the read, so one that arrives late changes
        nothing.
        """
        turn = self._turn
        record = self._store.get(turn.key)
        bins = record.bins if record else {}
        new = _successor(bins, turn)
        if new is None:
            return
        guard = Bound(_UNCHANGED, {"epoch": bins.get(EPOCH, 0)}) if record else None
        try:
            self._store.operate(
                turn.key,
                *new,
                when=guard,
                exists=Exists.UPDATE if record else Exists.CREATE,
                ttl=NEVER,
                repeatable=True,
            )
        except (Refused, NotFound, AlreadyExists):
            return  # another run or an earlier attempt of this run has done it: read again

    def _note_done(self) -> None:
        """Note that the batch is done. One call. Raises `FencedOut` if another run has taken over."""
        turn = self._turn
        try:
            self._store.operate(
                turn.key, Put(DONE, turn.bound(_DONE)), when=turn.bound(_MINE), ttl=NEVER, repeatable=True
            )
        except (Refused, NotFound):
            raise _succeeded(turn, f"while its batch {turn.batch} was at work") from None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was begun: whether it is done already, and its version.

    done: an earlier attempt has ended without an error; skip the work.
    version: larger than that of every earlier batch, also after the checkpoint was lost. If the batch is repeated, its
        version does not change.
    """

    query_id: str
    batch_id: int
    version: int
    done: bool
    _store: RecordStore = field(repr=False)

    def operate(
        self, key: Key, *ops: Op, bin: str = "version", ttl: int = KEEP, publish: WithWrite | None = None
    ) -> Values | None:
        """Apply the operations to one record once for this batch; return what they read, None if an earlier attempt did
        it.

        The version is stored in `bin` in the same atomic step. A record, or a bin, that does not exist has seen no
        batch. One call; another after a refusal. Raises `FencedOut` if the record has seen a later batch: another
        driver is ahead of this one.

        publish: a `latchwork.queue.Publish`, as for `RecordStore.operate`: delivered once for this batch. The
            operations must not read then, and the result is the one-tuple of the message's id.

        Raises else what `RecordStore.operate` raises: after `OutcomeUnknown` the batch may come
        again, and is applied once.
        """
        guard = Bound(_unseen(bin), {"version": self.version})
        try:
            return self._store.operate(
                key,
                *ops,
                Put(bin, self.version),
                when=guard,
                exists=Exists.ANY,
                or_absent=True,
                ttl=ttl,
                repeatable=publish is None,
                publish=publish,
            )
        except Refused as refusal:
            record = self._read_after(refusal, key, bin)
        seen = record.bins.get(bin) if record else None
        if seen == self.version:
            return None
        raise FencedOut(
            f"{key} has seen the version {shown(seen)} in bin {bin!r}, and the batch {self.batch_id} of the query "
            f"{self.query_id!r} has {self.version}: another driver is ahead; stop this driver",
            key=key,
            seen=seen,
            version=self.version,
        )

    def _read_after(self, refusal: Refused, key: Key, bin: str) -> Record | None:
        """Read the record after a refusal. Raises `OutcomeUnknown` if an attempt in doubt may have been applied."""
        try:
            return self._store.get(key, bin)
        except LatchworkError as failure:
            if not refusal.details.get("doubt"):
                raise
            raise OutcomeUnknown(
                f"the write of batch {self.batch_id} to {key} may have been applied, and the record cannot be read "
                f"({failure.code}): run the batch again",
                key=key,
            ) from failure


@lru_cache(maxsize=256)
def _unseen(bin: str) -> Expr:
    return missing(bin) | (Bin(bin) < Param("version"))


def _successor(bins: Mapping[str, Any], turn: BatchRun) -> list[Op] | None:
    """Return the operations that make this run the present one; None if it is already. Raises `FencedOut` if a later
    one took over.
    """
    stored = turn.stored(bins)
    epoch = turn.known(EPOCH, stored.epoch) + 1 if bins else 1
    runs, checkpoints = dict(stored.runs), dict(stored.checkpoints)
    same = stored.checkpoint == turn.checkpoint
    if turn.checkpoint in checkpoints and not same:
        raise _succeeded(turn, "with a newer checkpoint")
    if turn.run in runs and turn.run != stored.run:
        raise _succeeded(turn, "since")
    fresh: list[Op] = []
    if same:
        turn.check_not_behind(turn.known(DONE, stored.done))  # before it fences a driver that is ahead
        if stored.run == turn.run:
            return None
    else:
        # Another checkpoint counts from 0 again, and its rows are new to every sink.
        fresh = [Put(BASE, _ABOVE), Put(BEGUN, 0), Put(DONE, -1), Put(CHECKPOINT, turn.checkpoint)]
    runs[turn.run] = checkpoints[turn.checkpoint] = epoch
    return [
        *fresh,
        Put(RUN, turn.run),
        Put(EPOCH, epoch),
        Put(RUNS, _newest(runs)),
        Put(CHECKPOINTS, _newest(checkpoints)),
    ]


def _newest(seen: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(seen.items(), key=lambda one: one[1])[-REMEMBERED:])


def _succeeded(turn: BatchRun, how: str) -> FencedOut:
    return FencedOut(
        f"another run of the query {turn.query!r} has taken over {how}: this driver was considered dead, or two "
        "queries have one query_id; stop this query, or give it a name of its own"
    )


def _of_this_thread() -> tuple[str | None, str | None]:
    """Return the ids of the query and of its run, where this is the thread of a query in a classic driver."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None, None
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        return None, None
    session = SparkSession.getActiveSession()
    if session is None:
        return None, None
    query, group = (session.sparkContext.getLocalProperty(name) for name in (QUERY, GROUP))
    # The user's function may have set its own job group, which is no run's.
    return query, group if query and group and _UUID.fullmatch(group) else None


def _checked_name(what: str, value: str) -> str:
    size = len(checked_text(what, value).encode())
    if size > MAX_NAME:
        raise InvalidRequest(f"{what} has {size} bytes; it must have at most {MAX_NAME}: shorten it")
    return value


def _own_checkpoint(name: str) -> str:
    """Return the query's name in place of its checkpoint, outside of Spark. Raises `InvalidRequest` if Spark
    Connect runs this.
    """
    if "SPARK_CONNECT_LOCAL_URL" in os.environ:
        raise InvalidRequest(
            "Spark Connect does not tell a foreachBatch function which checkpoint its query has, and without that the "
            "rows of a new checkpoint may be taken for a repeat: give `checkpoint`, the id in the file `metadata` of "
            "the checkpoint's folder"
        )
    return name


@lru_cache(maxsize=1)
def _of_this_process(pid: int) -> str:
    """Return one id for as long as this process lives; a forked child has another."""
    return f"{pid}-{SYSTEM.unique()}"
