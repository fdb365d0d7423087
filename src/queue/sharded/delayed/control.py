"""The control record of a queue's delayed messages: how far the leader has come, what waits, whose it is (P16).

Set `{client}_delay_set`, one record a queue, key `C/{queue}`: `horizon`, the time (ms) up to which all buckets were
passed, and the counts `in` and `out`; of failed messages that are tried again also `retry-in`, `retry-out`, and
`last-retry`: `[due, message id, error]`; `unsettled`: of messages that wait for their update too long, id ->
`[since, why]`; `brought`: `{n}/{k}` of a bucket's record -> the ids whose entries are being dropped, not counted yet;
`expired` and `expired-at`: how many were dropped because their life was over, and when; `tag`, which group's it is, as
a drop of one that had the name before may end late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ....errors import AlreadyExists, Corrupt, NotFound, Refused, Unreadable
from ....store import (
    Add,
    Bin,
    Compute,
    Exists,
    Key,
    MapRemove,
    Param,
    Put,
    Read,
    RecordStore,
    Removal,
    Update,
    exists,
    missing,
)
from ....store.model.expr import SERVER_NOW, Bound
from ....store.model.ops import Op
from ....store.port import NEVER
from ..config import QueueConfig, whole_seconds
from .stored import Waiting, horizon_in, is_retry, last_retry_in, unsettled_in, waiting_in

MARGIN = 5_000
"""Milliseconds after its end for which a bucket is looked at again, since a publisher may be late."""
HORIZON, IN, OUT = "horizon", "in", "out"
RETRY_IN, RETRY_OUT, LAST_RETRY = "retry-in", "retry-out", "last-retry"
UNSETTLED, BROUGHT = "unsettled", "brought"
TAG = "tag"
"""Of the control record of a group: the group's tag."""
EXPIRED, EXPIRED_AT = "expired", "expired-at"
WAITING_BINS = (IN, OUT, RETRY_IN, RETRY_OUT, LAST_RETRY, HORIZON, UNSETTLED, EXPIRED, EXPIRED_AT)
"""The bins of the control record that `waiting_by` reads."""
DAY = 86_400
AS_FAR = (Read(HORIZON), Compute(SERVER_NOW))
"""How far the leader may have come, for `may_have_passed`."""
_IS_OF = Bin(TAG, str).eq(Param("tag", str))
_IS_OF_NO_OTHER = missing(TAG) | _IS_OF
_NONE = tuple(Put(bin, 0) for bin in (IN, OUT, RETRY_IN, RETRY_OUT))
_ANEW = (*_NONE, *(Put(bin, None) for bin in (LAST_RETRY, UNSETTLED, BROUGHT, EXPIRED, EXPIRED_AT)))
"""Nothing was counted, nor told to people."""


class ControlRecord:
    """The control record of one queue's delayed messages. Safe to share between threads."""

    def __init__(self, store: RecordStore, client_id: str, config: QueueConfig) -> None:
        self.store, self.client_id, self.name, self.config = store, client_id, config.name, config
        self._set, self._queue = f"{client_id}_delay_set", quote(config.name, safe="")
        self.kept = whole_seconds(config.message_expiry) + DAY  # seconds that an entry is kept after its time
        self.group = config.tag if config.of else None
        self.check_there: Callable[[], None] = lambda: None
        """Raises `NotFound` if this is of a group that was dropped."""
        self._is_mine = Bound(_IS_OF_NO_OTHER, {"tag": self.group}) if self.group else None
        self._has_control = False

    @property
    def control(self) -> Key:
        """The key of the control record."""
        return Key(self._set, f"C/{self._queue}")

    def _make_control(self) -> None:
        """Make the control record, from which on buckets are looked at. One call for a process; one more, or three, of
        a group that finds it there.
        """
        if not self._has_control:
            begin = (Put(HORIZON, SERVER_NOW), Put(IN, 0), Put(OUT, 0), Put(TAG, self.group))
            try:
                self.store.repeat(Update(self.control, begin, exists=Exists.CREATE, ttl=NEVER))
            except AlreadyExists:
                self.take_over()
            self._has_control = True

    def take_over(self) -> None:
        """Make a control record that a group left which had the name before, or an earlier version made, that of this
        group: else the end of a drop may remove it. What another group has counted is forgotten.

        The horizon stays, as processes of an earlier version, which write no tag, may have put ids of this group into
        buckets above it. The counts of a record without a tag stay, as they may be this group's.

        One call, none of a queue; three if it is taken over.
        """
        if self.group is None:
            return
        # Nothing is done if it is not there, or damaged, if this group was dropped, or if another process was faster.
        with suppress(NotFound, Corrupt, Unreadable, Refused):
            (tag,) = self.store.operate(self.control, Read(TAG), repeatable=True)
            if tag != self.group and isinstance(tag, str | None):
                self.check_there()  # after the read, so the tag is that of a group before this one
                guard = missing(TAG) if tag is None else Bound(_IS_OF, {"tag": tag})
                ops = (Put(TAG, self.group), *(() if tag is None else _ANEW))
                self.store.repeat(Update(self.control, ops, guard))

    def tag_control(self) -> None:
        """Put the group's tag into the control record, if an earlier version made that without one. One call."""
        rows = self.store.repeat_many([Update(self.control, (Put(TAG, self.group),), missing(TAG))])
        rows.raise_unless(NotFound, Refused, Corrupt, Unreadable)

    def removing_control(self) -> Removal:
        """Return the removal of the control record. It is refused if the record is not this group's."""
        return Removal(self.control, Bound(_IS_OF, {"tag": self.group}))

    def rebuild(self) -> None:
        """Write a damaged control record again, so that all buckets are looked at of which anything can be left. One
        call. A repeat is harmless, also if it arrives late.
        """
        begin = (Put(HORIZON, SERVER_NOW - (self.kept * 1000 + MARGIN)), *_NONE, Put(BROUGHT, None))
        self.store.repeat(Update(self.control, begin))

    def told_no_more(self, names: Collection[str]) -> Update:
        """Return the update by which people are not told of these any more as of messages that wait for their update.
        It is refused if they are told of none.
        """
        return Update(self.control, (MapRemove(UNSETTLED, tuple(names)),), exists(UNSETTLED))

    def count(self) -> int:
        """Return how many messages wait. Only roughly, as a lost reply may count one twice. One call."""
        return self.waiting().messages

    def waiting(self) -> Waiting:
        """Return how many messages wait, how late they are, and how many of them are tried again. One call."""
        record = self.store.get(self.control, *WAITING_BINS)
        return waiting_by(record.bins if record else {}, self.store.seams.wall())


def may_have_passed(horizon: Any, now: int) -> int | None:
    """Return the time (ms) up to which buckets may have been looked at, or will be by a look that has begun; None: any.

    now: the time of the control record, by which the leader looks. After its server's clock was set back it stands
    still, far ahead of the time of the records that are made now.
    """
    passed = horizon_in(horizon, now)
    return None if passed is None else max(passed, now - 1)


def waiting_by(bins: Mapping[str, Any], now: float) -> Waiting:
    """Return what waits, by the bins `WAITING_BINS` of a control record. now: seconds since the epoch."""
    came, went, again, tried, horizon = (bins.get(bin, 0) for bin in (IN, OUT, RETRY_IN, RETRY_OUT, HORIZON))
    late = now - horizon / 1000 if type(horizon) is int and horizon > 0 else 0.0
    messages = waiting_in(came, went)
    retrying = min(messages, waiting_in(again, tried))
    unsettled = unsettled_in(bins.get(UNSETTLED))
    is_damaged = any(type(one) is not int for one in (came, went, again, tried))
    lost: list[int] = [one if type(one) is int else 0 for one in (bins.get(EXPIRED), bins.get(EXPIRED_AT))]
    return Waiting(
        messages, max(0.0, late), retrying, last_retry_in(bins.get(LAST_RETRY)), unsettled, is_damaged, *lost
    )


def counting(bin: str, of_retries: str, names: Collection[str]) -> tuple[Op, ...]:
    """Return the operations that count these entries in the control record."""
    retries = sum(map(is_retry, names))
    return (Add(bin, len(names)), *([Add(of_retries, retries)] if retries else []))
