"""The latch of a phase of a job, and what its record says about every farm's partitions."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from ..coord.farms import checked_farm
from ..coord.latch.latch import LatchLevel
from ..coord.latch.layout import SET_SUFFIX, latch_key, named
from ..coord.latch.shares import Share, shares_of, total_of
from ..errors import NotFound
from ..inputs import checked_whole, farm_or_default
from ..store.port import Key, Record, RecordStore

MAX_GENERATION = 2**31
NEARBY = 8
"""Generations before and after this one that are looked for when it is not there."""


@dataclass(frozen=True, slots=True)
class JobPhase:
    """One phase of one run of a job, as one farm sees it."""

    client_id: str
    job: str
    phase: str | None
    generation: int
    farm: str
    level: LatchLevel

    @property
    def latch_id(self) -> str:
        """`spark/<job>/<phase>/<generation>`, job and phase percent-encoded as in a URL ("/" and "#" too).

        Without a phase its place is empty. So no two jobs, phases or generations share an id.
        """
        return self._latch_id(self.generation)

    @property
    def key(self) -> Key:
        """The key of the latch."""
        return self._key(self.generation)

    def read(self, store: RecordStore) -> Record:
        """Return the latch's record. Raises `NotFound`, which names the nearby generations that are there. 1 or 2
        reads.
        """
        record = store.get(self.key)
        if record is None:
            raise NotFound(f"{self._absent()}{self._instead(store)}", key=self.key)
        return record

    def shares(self, store: RecordStore) -> list[Share]:
        """Return every farm's share at XDC level, this farm's alone at DC level. Raises `NotFound`."""
        shares = shares_of(self.read(store))
        return shares if self.level is LatchLevel.XDC else [share for share in shares if share.farm == self.farm]

    def own_share(self, store: RecordStore) -> Share:
        """Return the share of `farm`. Raises `NotFound`, which names the farms that have one."""
        shares = shares_of(self.read(store))
        for share in shares:
            if share.farm == self.farm and share.remaining is not None:
                return share
        there = [share.farm for share in shares if share.remaining is not None]
        raise NotFound(f"{self._absent()}; there are shares of {', '.join(there)}", key=self.key)

    def own_total(self, store: RecordStore) -> int:
        """Return how many partitions the share of `farm` was created for, without their names. One read.

        Raises what `own_share` raises.
        """
        total = total_of(store, self.key, self.farm)
        return self.own_share(store).total if total is None else total

    def _absent(self) -> str:
        return f"no share of farm {self.farm!r} in generation {self.generation} of the latch {self.key.name!r}"

    def _instead(self, store: RecordStore) -> str:
        others = [self.generation + step for step in range(-NEARBY, NEARBY + 1) if step and self.generation + step >= 0]
        found = store.get_many([self._key(number) for number in others])
        there = [str(number) for number, record in zip(others, found, strict=True) if record is not None]
        if not there:
            return ": it was never created, was deleted or has expired; create it first"
        return f"; there is generation {', '.join(there)}: every driver of a run must name the same one"

    def _latch_id(self, generation: int) -> str:
        middle = "" if self.phase is None else quote(self.phase, safe="")
        return f"spark/{quote(self.job, safe='')}/{middle}/{generation}"

    def _key(self, generation: int) -> Key:
        return latch_key(self.client_id, self._latch_id(generation), SET_SUFFIX)


def job_phase(
    client_id: str, job: str, *, phase: str | None, generation: int, farm_id: str | None, level: LatchLevel
) -> JobPhase:
    """Return the phase, once its names can be stored. `farm_id`: default $LATCHWORK_FARM, else "local".

    Raises `InvalidRequest`.
    """
    named("job", job)
    if phase is not None:
        named("phase", phase)
    checked_whole("generation", generation, 0, MAX_GENERATION)
    farm = checked_farm(farm_or_default(farm_id))
    return JobPhase(client_id, job, phase, generation, farm, level)


def missing_of(share: Share) -> list[str]:
    """Return the partitions that have not counted, as "farm/partition"; "farm/*" while the share is not there."""
    if share.remaining is None:
        return [f"{share.farm}/*"]
    return [f"{share.farm}/{partition}" for partition in range(share.total) if partition not in share.counted]
