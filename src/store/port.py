"""The record-store port: atomic operations on single records, and batches of them.

`RecordStore` is what the primitives see: it validates, retries what is safe to retry, and makes an update
exactly-once where it is given a `Once`. A backend subclasses it and implements the underscored verbs, each one
attempt against its store. Absent, refused and unknown are three results: `None` or `NotFound`, `Refused`, and
`OutcomeUnknown`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, overload

from ..errors import (
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
from ..inputs import checked_each, checked_many, checked_switch
from ..plain import shown
from ..retry import QUEUE_POLICY, RetryPolicy, again
from ..seams import SYSTEM, Seams
from .model.expr import Bound, Expr, Guard
from .model.messages import MessageSteps
from .model.ops import Op
from .model.record import (  # fmt: skip
    KEEP,
    MAX_SET,
    MAX_TTL,
    NEVER,
    Exists,
    Key,
    Once,
    Record,
    Removal,
    Row,
    StoreInfo,
    Update,
    Values,
    checked,
    checked_bins,
    checked_key,
    checked_removal,
    checked_rows,
)
from .model.values import MAX_BIN, checked_bin, taken
from .once import TokenClock, operate_once
from .rows import Rows, after_repeat, attempted

T = TypeVar("T")
S = TypeVar("S", bound="RecordStore")
_ANSWERS = (Refused, NotFound, AlreadyExists, OutcomeUnknown)
"""The errors with which an attempt may end after another one in doubt; any other would say that nothing was written."""

_EACH_BY_ITSELF = nullcontext()


class WithWrite(Protocol):
    """A message that is published with a write, both or neither (P28); `latchwork.queue.Publish` is one."""

    def with_updates(self, store: Any, updates: Sequence[Update], publishes: Sequence[Any]) -> Rows[Values]:
        """Apply the updates, each with its message or without one; return what each has read, or its error."""

    def with_removal(self, store: Any, removal: Removal) -> bool:
        """Delete a record; whether it was there."""

    def with_effect(
        self, store: Any, update: Update, effect: Any, target: Callable[[str | None], Any]
    ) -> Callable[[], Any]:
        """Return what applies the effect of a message that is handled. target: returns the queue of this name."""


class RecordStore(ABC):
    """Atomic operations on single records, and batches of them. Safe to share between threads."""

    policy: RetryPolicy = QUEUE_POLICY
    seams: Seams = SYSTEM
    tells_of_writes: bool = False
    """Whether `data_version` tells of each write of any process, without a read. A store that wraps another one passes
    both on, or neither."""
    steps: MessageSteps | None = None
    """The verbs of sharded queues that are one step each here; None = there are none. A store that wraps another one,
    and must see each call, has none."""

    def __init__(self) -> None:
        self.token_clock = TokenClock()

    def with_policy(self, policy: RetryPolicy) -> RecordStore:
        """Return a view of this store, on its connection, that retries by another policy."""
        return PolicyView(self, policy)

    # ---- the verbs

    def get(self, key: Key, *bins: str) -> Record | None:
        """Return the record, or None where there is none; only these bins, or all where none is named."""
        key = checked_key(key)
        return self.policy.run(self.seams, self._get, key, checked_bins(bins), doubt=reads_are_repeatable)

    @overload
    def get_many(self, keys: Iterable[Key], *bins: str, each: Literal[False] = ...) -> list[Record | None]: ...

    @overload
    def get_many(
        self, keys: Iterable[Key], *bins: str, each: Literal[True]
    ) -> list[Record | Corrupt | Unreadable | None]: ...

    def get_many(self, keys: Iterable[Key], *bins: str, each: bool = False) -> Sequence[Record | LatchworkError | None]:
        """Read many records, in the order of the keys, in one round trip per node; None where there is no record.

        each: whether a record that cannot be read has its error as its outcome, and the others are read nevertheless.
            Finding such a record takes about 2 log2(n) more calls for n keys. Otherwise one such record fails the call.
        """
        wanted, bins = [checked_key(key) for key in checked_many("keys", keys)], checked_bins(bins)
        if not wanted:
            return []
        if checked_switch("each", each):
            return self._read_each(wanted, bins)
        return self.policy.run(self.seams, self._get_many, wanted, bins, doubt=reads_are_repeatable)

    def operate(
        self,
        key: Key,
        *ops: Op,
        when: Guard | None = None,
        exists: Exists = Exists.UPDATE,
        or_absent: bool = False,
        ttl: int = KEEP,
        once: Once | None = None,
        repeatable: bool = False,
        publish: WithWrite | None = None,
    ) -> Values:
        """Apply all operations to one record atomically if the guard holds; return what they read, in order.

        when: the guard. The server skips it if there is no record (P0.1), so a guarded write must be an update, unless
            `or_absent=True` says that an absent record counts as a guard that holds.
        exists: whether the record must exist, must not, or may.
        ttl: seconds to live from now, `KEEP` or `NEVER`.
        once: makes it exactly-once; the result is then the one-tuple of what `once` remembers (P1).
        repeatable: the guard makes a repeat harmless, so an attempt in doubt is simply sent again. `Refused` and
            `NotFound` after that carry `details["doubt"] = True`: the earlier attempt may have done it. Any other
            failure after that is `OutcomeUnknown`.
        publish: a `latchwork.queue.Publish`: its message is delivered if the update is applied, once, and only then,
            however processes die. Two calls more. The operations must not read, and the result is the one-tuple of the
            message's id. After `OutcomeUnknown` too both will happen, or neither.

        Raises `NotFound`, `AlreadyExists`, `Refused` (nothing written), `OutcomeUnknown`, `Unavailable`,
        `InvalidRequest`, `RecordTooBig`.
        """
        if publish is not None:
            return self._with_write(Update(key, ops, when, exists, or_absent, ttl), once, publish)
        update = Update(key if type(key) is Key else checked_key(key), ops, when, exists, or_absent, ttl)
        if checked_switch("repeatable", repeatable) and once is None:
            return self.repeat(update)
        checked(update)
        if once is not None:
            return operate_once(self, update, once)
        return self.policy.run(self.seams, self._operate, update)

    def repeat(self, update: Update) -> Values:
        """Apply an update that is made already and whose repeat is harmless, as `operate(repeatable=True)` does."""
        checked(update)
        try:
            return self._operate(update)
        except LatchworkError as failure:
            return self._repeated(failure, [], self._operate, update)

    def once(self, update: Update, *, token: bytes | None = None, is_new: bool = False) -> Values:
        """Apply an update exactly once, as `operate(once=...)` does; its form says how it is remembered.

        token: a token minted before, to continue an update that was begun earlier.
        is_new: no attempt with it was sent yet.
        """
        form = checked(update).form
        once = form.once if form else None
        if once is None:
            raise InvalidRequest(f"the update of {update.key} has no form with once=...: use operate")
        return operate_once(self, update, once if token is None else replace(once, token=token, is_new=is_new))

    def _with_write(self, update: Update, once: Once | None, publish: WithWrite) -> Values:
        """Apply an update and publish a message, both or neither."""
        checked(update)
        if once is not None:
            raise InvalidRequest("once with publish: an update that publishes is applied once anyway; leave once out")
        (outcome,) = checked_with_write(publish).with_updates(self, [update], [publish])
        if isinstance(outcome, LatchworkError):
            raise outcome
        return outcome

    def operate_many(
        self, updates: Iterable[Update], *, publish: Sequence[WithWrite | None] | None = None
    ) -> Rows[Values]:
        """Apply an update to each of many records in one round trip per node; an outcome for each row, each by itself.

        Rows that were never applied are tried again by the policy; rows in doubt are not. The rows are not atomic with
        one another, and have no order: give one record one row, unless any order of its rows will do.

        publish: for each row its message, as `operate` says, or None. Two calls more for up to 500 messages of a queue.
        """
        rows = checked_rows(updates)
        if publish is None:
            return self._rows(rows, self._operate_many)
        publishes = [
            None if one is None else checked_with_write(one)
            for one in checked_each("publish", publish, len(rows)) or ()
        ]
        first = next((one for one in publishes if one is not None), None)
        return self._rows(rows, self._operate_many) if first is None else first.with_updates(self, rows, publishes)

    def repeat_many(
        self, updates: Sequence[Update], instead: Callable[[], Sequence[Update]] | None = None
    ) -> Rows[Values]:
        """Apply updates whose repeat is harmless; an outcome for each. A row in doubt is sent again, as often as the
        policy says.

        instead: makes the rows of a batch that are sent from the second time on; then a repeat of only these need be
            harmless.

        An error that a row got after doubt has `details["doubt"]`: an earlier attempt may have done it. One update goes
        as a single call, several as one batch.
        """
        if type(updates) is not list:  # as nearly always
            updates = checked_many("updates", updates)
        if len(updates) != 1:
            return self._until_known(updates, self.operate_many, instead)
        try:
            return Rows((self.repeat(updates[0]),))
        except LatchworkError as failure:
            return Rows((failure,))

    def delete(
        self, key: Key, *, when: Guard | None = None, repeatable: bool = False, publish: WithWrite | None = None
    ) -> bool:
        """Delete the record if the guard holds. True if it was there, False if it was not.

        With `repeatable`, an attempt in doubt is sent again, and True also means that the earlier one may have done it.
        With `publish`, a `latchwork.queue.Publish`, its message is delivered if the record is deleted by this call,
        once, and only then. Three calls more. Others may see the record until the call returns, or for some seconds
        more if the process dies meanwhile; what they write to it then is deleted too.

        Raises `Refused`, `OutcomeUnknown`, `Unavailable`. Not durable in an AP namespace of Aerospike: a cold restart
        can bring the record back.
        """
        removal = checked_removal(Removal(key, when))
        if publish is not None:
            return checked_with_write(publish).with_removal(self, removal)
        if checked_switch("repeatable", repeatable):
            return self._delete_repeatedly(removal)
        return self.policy.run(self.seams, self._delete, removal)

    def delete_many(self, removals: Iterable[Removal], *, repeatable: bool = False) -> Rows[bool]:
        """Delete many records: for each True, False, or the error that `delete` would have raised.

        With `repeatable`, rows in doubt are sent again, as by `delete`; one removal then goes as a single call.
        """
        given = removals if type(removals) is list else checked_many("removals", removals)
        rows = [checked_removal(one) for one in given]
        if not checked_switch("repeatable", repeatable):
            return self._rows(rows, self._delete_many)
        if len(rows) != 1:
            return self._until_known(rows, partial(self._rows, attempt=self._delete_many))
        try:
            return Rows((self._delete_repeatedly(rows[0]),))
        except LatchworkError as failure:
            return Rows((failure,))

    def query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        """Return the records of a set whose bin has this value, in no order, with their keys. Needs `ensure_index`
        before.
        """
        _check_index(set, bin)
        if not isinstance(equals, str | int) or isinstance(equals, bool):
            raise InvalidRequest(f"a query for {shown(equals)}; an index finds str and int")
        return self.policy.run(self.seams, self._query, set, bin, taken(equals), doubt=reads_are_repeatable)

    def scan(self, set: str) -> list[Record]:
        """Return all records of a set, in no order, with their keys. It reads the whole set: for people, not for the
        work of a program. Raises `InvalidRequest` on a store that cannot list its records.
        """
        checked_key(Key(set, "any"))
        return self.policy.run(self.seams, self._scan, set, doubt=reads_are_repeatable)

    def ensure_index(self, set: str, bin: str, kind: type = str) -> None:
        """Make the index `{set}_{bin}` that `query` needs; one that exists already is no error."""
        _check_index(set, bin)
        self.policy.run(self.seams, self._ensure_index, set, bin, kind, doubt=reads_are_repeatable)

    @property
    def where(self) -> str:
        """The store as errors name it: its URL, without options and secrets; its `repr` if it has no URL."""
        return repr(self)

    @abstractmethod
    def describe(self) -> StoreInfo:
        """Return the facts about this store and its guarantees."""

    def together(self) -> AbstractContextManager[None]:
        """Make one transaction of all calls of this thread in the `with` block, on a store that has transactions.

        There the calls are written together when the block ends, or not at all. An error that leaves the block undoes
        everything. So does an error of a call that is not one of its answers (`NotFound`, `AlreadyExists`, `Refused`,
        `InvalidRequest`, `Corrupt` of a record that fails its checksum): the end of the block raises it again even if
        it was caught; `details["rolled_back"]` then says that nothing was written. `OutcomeUnknown` from the end of the
        block: all or nothing was written. What a call has read or answered is certain only once the block has ended. A
        block within another is a part of it. It waits only for the store, and not for long: other writers wait for its
        end.

        On all other stores it does nothing, and each call is by itself: on Aerospike, in memory, and through a store
        that counts, observes or fails calls, which must see the result of each. So use it for calls that are right one
        by one, and only cheaper together (P0).
        """
        return _EACH_BY_ITSELF

    def data_version(self) -> object:
        """Return a value that changes with each write of any process; None if the store cannot tell without a read.

        It may also change without a write. Not a call: if it is not known now, the value is different each time.
        """
        return None

    def close(self) -> None:
        """Close this process's connection, if the store made it; the next call makes another."""

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    # ---- what a backend implements: one attempt each, arguments already checked

    @abstractmethod
    def _get(self, key: Key, bins: Sequence[str]) -> Record | None: ...

    @abstractmethod
    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]: ...

    @abstractmethod
    def _operate(self, update: Update) -> Values: ...

    @abstractmethod
    def _operate_many(self, updates: Sequence[Update]) -> list[Row]: ...

    @abstractmethod
    def _delete(self, removal: Removal) -> bool: ...

    @abstractmethod
    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]: ...

    @abstractmethod
    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]: ...

    @abstractmethod
    def _ensure_index(self, set: str, bin: str, kind: type) -> None: ...

    def _scan(self, set: str) -> list[Record]:
        raise InvalidRequest(f"{self!r} cannot list the records of set {shown(set)}: name the record that is wanted")

    # ---- rows by themselves

    def _read_each(self, keys: list[Key], bins: Sequence[str]) -> list[Record | Corrupt | Unreadable | None]:
        """Read the records in one call; while that fails because of one of them, each half by itself."""
        try:
            return [*self.policy.run(self.seams, self._get_many, keys, bins, doubt=reads_are_repeatable)]
        except (Corrupt, Unreadable) as failure:
            if len(keys) == 1:
                return [failure]
        half = len(keys) // 2
        return [*self._read_each(keys[:half], bins), *self._read_each(keys[half:], bins)]

    # ---- retrying

    def _delete_repeatedly(self, removal: Removal) -> bool:
        """Delete a record; where the outcome is in doubt, again. True also if the earlier attempt may have done it."""
        try:
            return self._delete(removal)
        except LatchworkError as failure:
            doubts: list[bool] = []
            return self._repeated(failure, doubts, self._delete, removal) or bool(doubts)

    def _repeated(self, first: LatchworkError, doubts: list[bool], call: Callable[[Any], T], row: Any) -> T:
        """Try a row again whose first attempt failed, and whose repeat is harmless; return its outcome.

        `doubts` gets an entry for each attempt in doubt.
        """
        try:
            if not isinstance(first, Unavailable | OutcomeUnknown):
                raise first
            return self.policy.after(first, self.seams, call, row, doubt=lambda: doubts.append(True))
        except LatchworkError as failure:
            if doubts and not isinstance(failure, _ANSWERS):
                raise OutcomeUnknown(f"an attempt may have been applied; the last one was not: {failure}") from failure
            failure.details["doubt"] = bool(doubts)
            raise

    def _rows(self, rows: list[Any], attempt: Callable[[Sequence[Any]], list[T | LatchworkError]]) -> Rows[T]:
        """Send a batch, then only its rows that were never applied, until the policy stops."""
        if not rows:
            return Rows()
        outcomes = attempted(len(rows), lambda: attempt(rows))
        pending = _never_applied(outcomes)

        def again() -> None:
            nonlocal pending
            outcomes.sent_again = True
            places, pending = list(pending), {}
            found = attempted(len(places), lambda: attempt([rows[place] for place in places]))
            outcomes.merge(places, found)
            pending = {places[n]: failure for n, failure in _never_applied(found).items()}
            if pending:
                raise next(iter(pending.values()))

        if pending:
            with suppress(LatchworkError):  # which the rows have
                self.policy.after(next(iter(pending.values())), self.seams, again)
        return outcomes

    def _until_known(
        self,
        rows: Sequence[Any],
        send: Callable[[Sequence[Any]], Rows[T]],
        instead: Callable[[], Sequence[Any]] | None = None,
    ) -> Rows[T]:
        """Send a batch whose repeat is harmless, then its rows in doubt again, as often as the policy says.

        instead: makes the rows that are sent from the second time on, if these differ.
        """
        outcomes, failed = send(rows), self.seams.monotonic()
        for attempt in range(1, self.policy.attempts):
            doubtful = {n: outcome for n, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown)}
            if not doubtful:
                break
            pause = self.policy.pause(attempt, self.seams)
            if self.policy.is_too_late(failed, pause, self.seams):
                break
            if instead is not None:
                rows, instead = instead(), None
            outcomes.sent_again = True
            self.seams.note("retries", reason="in_doubt")
            self.seams.sleep(pause)
            if next(iter(doubtful.values())).details.get("alone"):  # a row that failed in the batch would fail again
                found = Rows(outcome for place in doubtful for outcome in send([rows[place]]))
            else:
                found = send([rows[place] for place in doubtful])
            outcomes.merge(doubtful, map(after_repeat, doubtful.values(), found))
        return outcomes


class DelegatingStore(RecordStore):
    """A store that sends every attempt to another, `inner`; a wrapper overrides what it changes.

    It has no transactions (`together`), as most wrappers must see the result of each call.
    """

    def __init__(self, inner: RecordStore) -> None:
        self.inner, self.policy = inner, inner.policy
        self.seams, self.token_clock = inner.seams, inner.token_clock
        self.tells_of_writes = inner.tells_of_writes

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def where(self) -> str:
        """The name of the inner store."""
        return self.inner.where

    def describe(self) -> StoreInfo:
        return self.inner.describe()

    def data_version(self) -> object:
        return self.inner.data_version()

    def close(self) -> None:
        self.inner.close()

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        return self.inner._get(key, bins)

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        return self.inner._get_many(keys, bins)

    def _operate(self, update: Update) -> Values:
        return self.inner._operate(update)

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        return self.inner._operate_many(updates)

    def _delete(self, removal: Removal) -> bool:
        return self.inner._delete(removal)

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        return self.inner._delete_many(removals)

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        return self.inner._query(set, bin, equals)

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        self.inner._ensure_index(set, bin, kind)

    def _scan(self, set: str) -> list[Record]:
        return self.inner._scan(set)


class PolicyView(DelegatingStore):
    """A store seen through another retry policy; everything else is the store's own."""

    def __init__(self, inner: RecordStore, policy: RetryPolicy) -> None:
        if not isinstance(policy, RetryPolicy):
            raise InvalidRequest(f"policy is {shown(policy)}; give a latchwork.retry.RetryPolicy")
        super().__init__(inner)
        self.policy, self.steps = policy, inner.steps

    def __reduce__(self) -> tuple[Any, ...]:
        return PolicyView, (self.inner, self.policy)

    def with_policy(self, policy: RetryPolicy) -> RecordStore:
        return PolicyView(self.inner, policy)

    def together(self) -> AbstractContextManager[None]:
        return self.inner.together()


def checked_with_write(publish: Any) -> WithWrite:
    """Return the message that is published with a write. Raises `InvalidRequest` if it is not a `Publish`."""
    verbs = ("with_updates", "with_removal", "with_effect")
    if isinstance(publish, type) or not all(hasattr(publish, verb) for verb in verbs):
        raise InvalidRequest(f"publish is {shown(publish)}; give latchwork.queue.Publish(payload, queue=...)")
    rider: WithWrite = publish
    return rider


def reads_are_repeatable() -> None:
    """Allow a read in doubt to be sent again: it changes nothing."""


def _check_index(set: str, bin: str) -> None:
    checked_key(Key(set, "any"))
    checked_bin(bin)


def _never_applied(outcomes: Sequence[Any]) -> dict[int, Unavailable]:
    """Return the errors of rows that may be sent again, by their places."""
    return {n: row for n, row in enumerate(outcomes) if isinstance(row, Unavailable) and again(row)}


__all__ = [
    "KEEP", "MAX_BIN", "MAX_SET", "MAX_TTL", "NEVER", "Bound", "Exists", "Expr", "Guard", "Key", "Once",
    "OutcomeUnknown", "Record", "RecordStore", "Removal", "Row", "StoreInfo", "Update", "Values", "checked_bin",
]  # fmt: skip
