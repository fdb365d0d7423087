"""A latch for the partitions of a Spark job: released once every partition has counted, however often it was run.

Spark runs a partition again when a task fails, when an executor is lost and, with speculation, while the first copy
still runs. So the party that counts is the partition's number, never an attempt id, and the latch is that of one job
phase: a number means something only within it. The rest is `CountDownLatch` (docs/protocols P8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..coord.latch.latch import TTL, CountDownLatch, LatchLevel, LatchProgress
from ..coord.latch.layout import MAX_PARTIES as MAX_PARTITIONS
from ..coord.latch.progress import ProgressBar
from ..coord.presence.presence import Group, Membership
from ..errors import InvalidRequest, Misconfigured, NotFound
from ..inputs import checked_whole
from ..store.port import RecordStore
from .phase import JobPhase, job_phase, missing_of

if TYPE_CHECKING:
    from pyspark import TaskContext

T = TypeVar("T")
DRIVER = "driver"
"""The name of a farm's driver, if it has no other."""


class PhaseLatch(CountDownLatch):
    """The latch underneath. Its parties are partitions; who dies is the driver of a farm's share."""

    def _unfinished(self, group: Group, lost: set[str]) -> set[str]:
        """Return the lost drivers whose farm has not counted all of its share, or not brought it; names as
        "farm/driver".
        """
        remaining = self.counts()
        deciding = {name for name in lost if self._level is LatchLevel.XDC or _farm_of(name) == group.farm}
        return {name for name in deciding if remaining.get(_farm_of(name)) != 0}


def _farm_of(name: str) -> str:
    return name.partition("/")[0]


class SparkLatch:
    """A counter of the partitions of one job phase, each once. Ships to executors by the URL of its store.
    Safe to share between threads.

    Count a partition after its output is visible. With Spark's own writers (`df.write`) the output is visible after the
    *job*, because a committer publishes the files at its end. If a stage before the write counts, waiters are released
    and find nothing. So let each task write its own file, rename it, and then count. Or write first, and count in a
    second pass over the output.

    Use no `coalesce` in the stage that counts; use `repartition`. In a `coalesce` Spark runs the function once for each
    partition that it merges, and all of them have the number of one task. The first that ends counts for the rest, so
    waiters are released too early; no latch can notice that.

    Not promised: that a partition whose output is not read to the end counts (`take`, `limit`, a cached part), and that
    the number of partitions stays the same (adaptive execution merges them, unless they come from `repartition(n)`).
    `preflight` checks this before the job starts.
    """

    def __init__(self, store: RecordStore, latch: CountDownLatch, phase: JobPhase, partitions: int | None) -> None:
        self._store, self._latch, self._phase, self._partitions = store, latch, phase, partitions
        self._drivers = Group(store, f"{phase.client_id}/{phase.latch_id}/latch", farm_id=phase.farm)

    def __repr__(self) -> str:
        return f"SparkLatch({self._phase.latch_id!r}, farm={self._phase.farm!r}, level={self._phase.level.value})"

    @classmethod
    def create(
        cls,
        store: RecordStore,
        client_id: str,
        job: str,
        partitions: int,
        *,
        phase: str | None = None,
        generation: int = 0,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = TTL,
    ) -> SparkLatch:
        """Create this farm's share: one count for each of `partitions`, 0 to 100,000 of them.

        phase: distinguishes the stages of a job.
        generation: distinguishes its runs; a run that starts over with other input takes the next one, a run that
            continues where it was killed keeps it.
        farms: at XDC level the farms that have to bring their share.
        farm_id: whose share this is; default $LATCHWORK_FARM, else "local".
        ttl: seconds that the latch is kept after its last count.

        Raises `AlreadyExists` if this farm's share exists, `InvalidRequest` before any I/O.
        """
        names = range(checked_whole("partitions", partitions, 0, MAX_PARTITIONS))
        this = job_phase(client_id, job, phase=phase, generation=generation, farm_id=farm_id, level=level)
        latch = PhaseLatch.create(
            store, client_id, this.latch_id, parties=names, farms=farms, farm_id=this.farm, level=level, ttl=ttl
        )
        return cls(store, latch, this, partitions)

    @classmethod
    def get_or_create(
        cls,
        store: RecordStore,
        client_id: str,
        job: str,
        partitions: int,
        *,
        phase: str | None = None,
        generation: int = 0,
        farms: Iterable[str] | None = None,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int | None = None,
    ) -> SparkLatch:
        """Create this farm's share as `create` does, or leave an existing one unchanged: for a driver that runs again.

        A run that starts over with other input takes the next `generation`; the share of the earlier one may be counted
        already.

        ttl: default 43,200 s (12 hours) for a share that is created; an existing one keeps its remaining time.

        Raises `AlreadyExists` if it exists for another number of partitions; else what `create` raises.
        """
        names = range(checked_whole("partitions", partitions, 0, MAX_PARTITIONS))
        this = job_phase(client_id, job, phase=phase, generation=generation, farm_id=farm_id, level=level)
        latch = PhaseLatch.get_or_create(
            store, client_id, this.latch_id, parties=names, farms=farms, farm_id=this.farm, level=level, ttl=ttl
        )
        return cls(store, latch, this, None if latch.expected() is None else partitions)

    @classmethod
    def get(
        cls,
        store: RecordStore,
        client_id: str,
        job: str,
        *,
        phase: str | None = None,
        generation: int = 0,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int | None = None,
    ) -> SparkLatch:
        """Return a handle on a latch that was, or will be, created elsewhere: in another driver, on an executor. No
        I/O.

        ttl: seconds that each count gives the latch to live; default: its remaining time is kept.
        """
        this = job_phase(client_id, job, phase=phase, generation=generation, farm_id=farm_id, level=level)
        latch = PhaseLatch.get(store, client_id, this.latch_id, farm_id=this.farm, level=level, ttl=ttl)
        return cls(store, latch, this, None)

    # ---- in a task

    def count_down_partitions(self, it: Iterable[T]) -> Iterator[T]:
        """Yield the items; count the partition, once, when the last item has been taken.

        For the end of `mapInArrow` and `mapInPandas`, and, on classic Spark, of `mapPartitions` and `foreachPartition`:

            df.mapInArrow(latch.count_down_partitions, df.schema)
            rdd.mapPartitions(lambda rows: latch.count_down_partitions(work(rows)))

        An attempt that fails on the way does not count. Not below a `coalesce`, where it counts too early (see the
        class); `repartition` instead. Raises `InvalidRequest` outside of a task, and as `count_down_partition` when the
        last item has been taken.
        """
        partition = self._partition()
        return self._counting(it, partition)

    def count_down_partition(self) -> int:
        """Count this task's partition, once; what remains in this farm. For a task that has made its output visible.

        One store call, however often and from however many attempts it is repeated (a handle from `get` reads the
        latch before its first count). Raises `InvalidRequest` outside of a task and for a partition that the
        latch was not created for; `NotFound` and `OutcomeUnknown` as `CountDownLatch.count_down`: the task fails, and
        its next attempt counts.
        """
        return self._count(self._partition())

    def _counting(self, it: Iterable[T], partition: int) -> Iterator[T]:
        yield from it
        self._count(partition)

    def _count(self, partition: int) -> int:
        """Count the partition. One beyond the number of partitions must not count: it would release the waiters while
        another is missing.
        """
        if self._partitions is None:
            self._partitions = self._total()
            self._check(partition)
        return self._latch.count_down(party=partition)

    def _total(self) -> int:
        """Return how many partitions the share was created for. Raises `NotFound`, which names the existing shares."""
        try:
            named = self._latch.expected()
        except NotFound:
            named = None
        # Earlier versions did not keep it.
        return self._phase.own_total(self._store) if named is None else len(named)

    def _partition(self) -> int:
        context = _task()
        if context is None:
            raise InvalidRequest(
                f"{self!r} counts the partition of a Spark task, and this is not one: call it inside mapPartitions, "
                "foreachPartition or mapInPandas"
            )
        partition = int(context.partitionId())
        self._check(partition)
        return partition

    def _check(self, partition: int) -> None:
        if self._partitions is not None and partition >= self._partitions:
            raise InvalidRequest(
                f"partition {partition} of {self!r}, which was created for {self._partitions}: create it for as many "
                "as the job has, or fix the number with repartition(n)"
            )

    # ---- in a driver

    def join(self, me: str = DRIVER, *, lease: float = 10.0) -> Membership:
        """Register as a driver of this farm's share, so that waiters get an error if this driver dies. Two calls.

            with latch.join():
                df.mapInArrow(latch.count_down_partitions, df.schema).write...

        The `with` block ends by leaving; if it ends by an error, the others learn at once that this driver died. A
        driver that was started again joins again, and they wait for it again.

        me: its name, if several drivers work at one farm's share.
        lease: seconds after which a driver that does not renew counts as dead; it must exceed any pause that a live
            driver makes. It is renewed in the background, for as long as something refers to the result.

        Raises what `Group.join` raises.
        """
        return self._drivers.join(me, lease=lease)

    def wait(
        self,
        timeout: float | None = None,
        progress: bool | Callable[[LatchProgress], None] | None = True,
        *,
        create_timeout: float | None = 0,
    ) -> bool:
        """Wait until every partition has counted; return True then, False after `timeout` seconds (None = no limit).

        progress: True draws a bar on stderr that names the missing partitions, if stderr is a terminal; a function is
            called with a `LatchProgress` whenever the counters changed.
        create_timeout: seconds to wait for the latch to be created, within `timeout`.

        Raises `NotFound` if it is not created by then, and when it is deleted (and perhaps made again) or expires: that
        never counts as released. Raises `PartyLost` with the names of drivers, as "farm/driver", that have joined and
        died before their farm had counted, within their lease; at DC level only drivers of this farm. Wait again once
        they were started again. Interruptible.
        """
        if progress is not True:
            return self._latch.wait(timeout, progress=progress, create_timeout=create_timeout, alive=self._drivers)
        bar = ProgressBar(self, self._whole, self._store.seams)
        try:
            # missing() names the absent farms already
            return self._latch.wait(
                timeout,
                progress=lambda now: bar.update(replace(now, absent_farms=())),
                create_timeout=create_timeout,
                alive=self._drivers,
            )
        finally:
            bar.close()

    def _whole(self) -> int:
        """Return the number of partitions, at XDC level of all farms that have brought theirs. One read."""
        return sum(share.total for share in self._phase.shares(self._store))

    def missing(self) -> list[str]:
        """Return the partitions that have not counted, as "farm/partition", in order; at XDC level of all farms.

        A farm that has not brought its share yet is "farm/*". One read. Raises `NotFound`.
        """
        return [name for share in self._phase.shares(self._store) for name in missing_of(share)]

    def counts(self) -> dict[str, int]:
        """Return how many partitions of each farm are still to count, whatever the level. One read. Raises
        `NotFound`.
        """
        return self._latch.counts()

    def preflight(self, partitions: int) -> None:
        """Check, before a job of so many partitions starts, for what would make its waiters hang. One or two reads.

        Raises `NotFound` if there is no latch of this generation (it names existing ones of other generations) or no
        share of this farm; `InvalidRequest` if the share was created for another number of partitions. From then on the
        handle knows their number, and its first count does not ask for it.

        partitions: of the frame whose function counts, not of what a `coalesce` after it leaves: such a job is wrong,
            and its number says nothing about that.
        """
        checked_whole("partitions", partitions, 0, MAX_PARTITIONS)
        share = self._phase.own_share(self._store)
        if share.total != partitions:
            fate = "the rest would never count" if partitions < share.total else "some would be refused"
            raise InvalidRequest(
                f"the job has {partitions} partitions, and {self!r} was created for {share.total}: {fate}; create it "
                f"for {partitions}, or repartition({share.total})"
            )
        self._partitions = partitions

    def delete(self) -> bool:
        """Delete the latch, all farms' shares; False if it does not exist, or is not the one created here."""
        return self._latch.delete()


def _task() -> TaskContext | None:
    try:
        from pyspark import TaskContext  # noqa: PLC0415 - an optional extra, needed only inside a task
    except ImportError:
        raise Misconfigured("pyspark is not installed here: pip install 'latchwork[spark]'") from None
    return TaskContext.get()
