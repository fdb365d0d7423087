"""A barrier for drivers: several Spark jobs that wait for each other and exchange data.

Each driver is a member of a group from its first wait on. If one dies, the others get its name within its lease,
instead of waiting for it. The rest is `Barrier` (docs/protocols P11).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..coord.barrier.barrier import Barrier, BarrierProgress
from ..coord.latch.latch import LatchLevel
from ..coord.presence.presence import Group, Membership
from ..errors import InvalidRequest, LatchworkError
from ..store.port import RecordStore
from .phase import job_phase


class SparkBarrier:
    """The drivers of one run of a job, each by a name of its own. For one driver, and one thread in it.

        drivers = ["orders", "stock"]
        with SparkBarrier(store, "shop", "nightly", drivers=drivers, me="orders") as barrier:
            others = barrier.wait({"rows": orders.count()}, timeout=3600)

    drivers: all that meet; at XDC level as `"farm/driver"`.
    me: which of them this is, without the farm's name.
    phase: distinguishes the barriers of a job.
    generation: distinguishes its runs; a run that starts over takes the next one, so that a driver that died in an
        earlier run does not count as dead in this one.
    lease: seconds after which a driver that does not renew counts as dead; it must exceed any pause that a live driver
        makes.
    farm_id: whose driver this is; default $LATCHWORK_FARM, else "local".

    Raises `InvalidRequest` if `me` is not one of the drivers of its farm.
    """

    def __init__(
        self,
        store: RecordStore,
        client_id: str,
        job: str,
        *,
        drivers: Iterable[str],
        me: str,
        phase: str | None = None,
        generation: int = 0,
        lease: float = 10.0,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
    ) -> None:
        this = job_phase(client_id, job, phase=phase, generation=generation, farm_id=farm_id, level=level)
        self._barrier = Barrier(store, client_id, this.latch_id, parties=drivers, farm_id=this.farm, level=level)
        self._barrier._place(me)  # noqa: SLF001 - before it joins: its wait would refuse it, after the work
        self._group = Group(store, f"{client_id}/{this.latch_id}", farm_id=this.farm)
        self.me, self._lease = me, lease
        self._membership: Membership | None = None

    def __repr__(self) -> str:
        return f"SparkBarrier({self._barrier.name!r}, me={self.me!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidRequest(f"{self!r} is for a driver, not for executors: use SparkLatch for partitions")

    def __enter__(self) -> SparkBarrier:
        """Join the drivers: from now on they notice if this one dies."""
        self._join()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Leave them; if the block ends by an error, the others learn at once that this driver died. If they cannot be
        told, they learn it after the lease: the block's own error is raised.
        """
        try:
            self.close(failed=error is not None)
        except LatchworkError:
            if error is None:
                raise

    def wait(self, payload: Any = None, timeout: float | None = None) -> dict[str, Any]:
        """Wait until all drivers have arrived; return what each of them has brought. Joins them if that was not done
        yet.

        payload: JSON of at most 64 KiB.
        timeout: seconds, None = no limit.

        A driver that was started again arrives at the meeting in progress, or at the next. Raises `PartyLost` with the
        names of drivers that died, within their lease; else what `Barrier.wait` raises.
        """
        self._join()
        return self._barrier.wait(self.me, payload, timeout, alive=self._group)

    def abort(self, reason: str) -> bool:
        """Break the meeting in progress: the drivers that wait get the reason. See `Barrier.abort`."""
        return self._barrier.abort(reason)

    def progress(self) -> BarrierProgress:
        """Return which drivers have arrived, and which have not. One read."""
        return self._barrier.progress()

    def close(self, *, failed: bool = False) -> None:
        """Leave the drivers. Closing twice is harmless.

        failed: whether the others are to learn that this one died.
        """
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.fail() if failed else membership.leave()

    def _join(self) -> None:
        """Join the drivers, or join again if this one was paused and counts as dead."""
        if self._membership is None or self._membership.lost.is_set():
            self._membership = self._group.join(self.me, lease=self._lease)
