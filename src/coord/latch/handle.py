"""Handles of latches: the record's key, and the identity of the latch in it.

A latch may be deleted and created again under one id. A handle means one of these latches, by its nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from ...errors import InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused
from ...inputs import checked_kind, farm_or_default
from ...plain import shown
from ...retry import LATCH_POLICY, RetryPolicy
from ...store.connect import as_store
from ...store.port import KEEP, Record, RecordStore
from ..farms import checked_farm, checked_ttl
from . import layout
from .layout import Names, bins_of

TTL = 43_200
"""Default time to live of a latch, in seconds: longer than a night's work, and over before the next night."""
H = TypeVar("H", bound="Handle")
T = TypeVar("T")


class LatchLevel(Enum):
    """The counters that decide when a latch is released: this farm's own (`DC`), or the sum over all farms (`XDC`)."""

    DC = "dc"
    XDC = "xdc"


class Handle:
    """A latch's key, its nonce, and the names of its parties, as far as they are known."""

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
    def get(
        cls: type[H],
        store: RecordStore,
        client_id: str,
        latch_id: str,
        *,
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int | None = None,
        set_suffix: str = "distributed_latch",
        policy: RetryPolicy = LATCH_POLICY,
    ) -> H:
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
                f"`latchwork latch list --client {self._client}` lists the latches that there are"
            )
        return NotFound(why, key=self._key)

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
        """Return what was read. Raises `NotFound` if it is nothing, or a later latch."""
        if record is None:
            raise self._gone()
        if self._identified and record.bins.get(bins_of(self._farm).id) != self._nonce:
            raise self._made_again()
        return record
