"""Exactly once: an update that carries a token, and what to do when its outcome is in doubt (docs/protocols P1).

A map bin of the record remembers the newest `capacity` tokens and the result of each. Every attempt is guarded by
"this token is not there, and either the map has room or its smallest token is older than this one", so a repeat, or
an attempt that lands late, changes nothing. The token is minted here, above the retry, in order of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from msgspec.structs import replace

from ..errors import (
    AlreadyExists,
    BinMismatch,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from ..plain import shown
from ..retry import RetryPolicy
from ..seams import Seams
from .model.expr import (  # fmt: skip
    EXPRESSIONS,
    SERVER_NOW,
    Bound,
    Expr,
    MapHas,
    MapKeyAt,
    MapSize,
    Param,
    all_of,
    any_of,
    exists,
    lacks,
    missing,
    unbound,
)
from .model.form import Form, plain
from .model.ops import Compute, MapGet, MapPut, MapTrim, Op, Read
from .model.record import Key, Once, Update, Values

__all__ = ["Attempts", "TokenClock", "operate_once"]

RELEARN = 60.0
"""Seconds after which the server's time is asked for again."""
AHEAD = 86_400_000_000
"""Microseconds. A token that is further ahead of the server's time was not minted here: the record is damaged.
To mint above it would carry the damage on, and end where 7 bytes end."""
MEANWHILE = 60_000_000
"""Microseconds by which the server's time may have gone on between a refusal and the look that asks why."""
MAX_FLOORS = 1_024
"""Records of which a process remembers that others have newer tokens there."""
_TIME = 7
TOKEN = _TIME + 10
"""Bytes of a token: of the time, and unique ones."""
_LAST = (1 << 8 * _TIME) - 1
_TOKEN = Param("\0token", bytes)
_SINCE = Param("\0since")
"""Parameters of this module. Their names begin with a NUL, so they differ from all names of the caller."""
_NOT_AHEAD = SERVER_NOW >= _SINCE
"""The guard "the token is at most a day ahead of the time of this record". After the server's clock was set back, a
record that was written before has a later time than others (P0.3), and the client may have learned the time from it."""
CANCELLED = b"cancelled:"
"""Remembered, with the token, instead of a result for an update that was given up: a first attempt that arrives late is
refused. No result has this form.
"""


class Attempts(Protocol):
    """The part of a store that an update needs to be made exactly once: `RecordStore` has it."""

    policy: RetryPolicy
    seams: Seams
    token_clock: TokenClock

    def _operate(self, update: Update) -> Values: ...
    @property
    def operate(self) -> Callable[..., Values]: ...


class TokenClock:
    """The time for tokens: this process's clock since boot, corrected by what replies say about the server's time.

    Only the order of tokens depends on it: a clock that is wrong costs a second attempt, never a double update. Before
    the first reply it is the wall clock, which may be wrong by years. After that it does not matter how the wall clock
    is set.
    """

    def __init__(self) -> None:
        self._offset: int | None = None
        self._learned = 0.0
        self._floors: dict[Key, int] = {}

    def wants_to_learn(self, seams: Seams) -> bool:
        """Whether the next reply should bring the server's time along: at first, and again each minute."""
        return self._offset is None or seams.monotonic() - self._learned > RELEARN

    def learn(self, seams: Seams, server_ms: int) -> None:
        """Take note of the server's time in milliseconds, from a reply that has just come."""
        self._offset, self._learned = server_ms * 1000 - int(seams.boottime() * 1_000_000), seams.monotonic()

    def server_ms(self, seams: Seams) -> int | None:
        """Return the server's time, about, in milliseconds; None before the first reply. No call."""
        return None if self._offset is None else (self._offset + int(seams.boottime() * 1_000_000)) // 1000

    def mint(self, seams: Seams, key: Key) -> bytes:
        """Return a token for this record, in order of time: 7 bytes of microseconds, then 10 unique ones."""
        offset = self._offset
        now = int(seams.wall() * 1_000_000) if offset is None else offset + int(seams.boottime() * 1_000_000)
        time = min(max(now, self._floors.get(key, 0)), _LAST)
        return time.to_bytes(_TIME, "big") + bytes.fromhex(seams.unique())

    def outrank(self, key: Key, token: bytes) -> None:
        """Let tokens for this record be later than this one, which another process has put there."""
        if len(self._floors) >= MAX_FLOORS:
            self._floors.clear()  # what is forgotten costs a second attempt
        self._floors[key] = time_of(token) + 1

    def forget(self, key: Key) -> None:
        """Let tokens for this record be as early as the server's time is."""
        self._floors.pop(key, None)


def time_of(token: bytes) -> int:
    """Return when a token was minted, in microseconds since the epoch by the server's clock."""
    return int.from_bytes(token[:_TIME], "big")


def operate_once(store: Attempts, update: Update, once: Once) -> Values:
    """Apply the update exactly once; the one-tuple of what was remembered.

    Raises `Refused` or `NotFound` where it was not applied and never will be, `OutcomeUnknown` where it may have been
    or may still be, `Unavailable` where it was not. `Refused` with `details["doubt"]`: it was not applied to this
    record, but an attempt was not answered: if the record was deleted and made again since, that may have been applied.
    """
    if not isinstance(once, Once):
        raise InvalidRequest(f"once is {shown(once)}; it must be a Once")
    return _Attempt(store, update, once).run()


@lru_cache(maxsize=4096)
def _fresh(bin: str, capacity: int, when: Expr | None) -> Expr:
    """Return the guard "the map has room, or its smallest token is older, and the token is not far ahead", and the
    update's own.
    """
    # The likely answer first: in an old map all but the newest tokens have been trimmed.
    fresh = any_of(MapKeyAt(bin, 0, bytes) < _TOKEN, MapSize(bin) < capacity, missing(bin))
    return all_of(fresh, _NOT_AHEAD) if when is None else all_of(fresh, _NOT_AHEAD, when)


@lru_cache(maxsize=4096)
def _unused(bin: str, capacity: int, when: Expr | None) -> Expr:
    """Return the guard, and "the token is not there": for a result that is an expression, which cannot be put
    as new.
    """
    return all_of(lacks(bin, _TOKEN), _fresh(bin, capacity, when))


def _guard(once: Once, when: Expr | None) -> Expr:
    """Return the guard of every attempt, with the parameters that `_named` gives."""
    return (_unused if isinstance(once.result, EXPRESSIONS) else _fresh)(once.bin, once.capacity, when)


def _named(token: bytes) -> dict[str, Any]:
    """Return the parameters of an attempt with this token."""
    return {_TOKEN.name: token, _SINCE.name: (time_of(token) - AHEAD) // 1000}


def _remembering(once: Once, token: bytes | Param) -> tuple[Op, ...]:
    """Return the operations that keep the token and read the result."""
    put = MapPut(once.bin, token, once.result, not isinstance(once.result, EXPRESSIONS))
    answer: Op = MapGet(once.bin, token) if once.answer is None else Read(once.answer)
    return put, _trim(once.bin, once.capacity), answer


@lru_cache(maxsize=4096)
def _trim(bin: str, capacity: int) -> MapTrim:
    return MapTrim(bin, capacity)


class _Attempt:
    """One update on its way: its token, and whether an attempt with that token is in doubt.

    outranks: whether the token was minted just above another one of the record, and so says nothing of the time.
    """

    __slots__ = ("cancelled", "doubt", "once", "outranks", "store", "token", "unanswered", "update")

    def __init__(self, store: Attempts, update: Update, once: Once) -> None:
        self.store, self.update, self.once = store, update, once
        self.token = once.token or store.token_clock.mint(store.seams, update.key)
        self.doubt = once.token is not None and not once.is_new
        self.unanswered, self.cancelled, self.outranks = False, False, False

    def run(self) -> Values:
        """Return the answer. Where an attempt was not answered, its resolution is counted in the metrics."""
        try:
            values = self._answer()
        except (Refused, AlreadyExists):
            self._count("cancelled" if self.cancelled else "refused")
            raise
        except LatchworkError as failure:
            # With an attempt in doubt no failure of a later one is an answer: the record may have gone since, or been
            # too big for a moment, or the disk may have failed.
            if not self.doubt:
                raise
            self._count("unknown")
            if isinstance(failure, OutcomeUnknown):
                raise
            raise self._unknown(f"a later attempt failed ({failure.code})") from failure
        if self.unanswered:
            self._count("applied")
        return values

    def _count(self, outcome: str) -> None:
        if self.unanswered:
            self.store.seams.note("doubts", outcome=outcome)

    def _answer(self) -> Values:
        for _ in range(self.store.policy.attempts + 2):  # a token minted again is no retry
            try:
                return self._send()
            except (Refused, AlreadyExists) as refusal:
                if isinstance(refusal, AlreadyExists) and not self.doubt:
                    raise
                answer = self._resolve(refusal)
                if answer is not None:
                    return answer
            except OutcomeUnknown as failure:
                raise self._unknown("no attempt was answered") from failure
        raise Unavailable(
            f"the update of {self.update.key} was not applied: {self.once.capacity} newer tokens came first each time; "
            "give the record a larger memory of tokens, or try again"
        )

    def _send(self) -> Values:
        store, clock = self.store, self.store.token_clock
        attempt, learning = self._attempt(), clock.wants_to_learn(store.seams)
        if learning:
            attempt = plain(attempt)
            attempt = replace(attempt, ops=(*attempt.ops, Compute(SERVER_NOW)))
        values = store.policy.run(store.seams, store._operate, attempt, doubt=self._doubted)
        if not learning:
            return values[-1:]
        clock.learn(store.seams, values[-1])
        return values[-2:-1]

    def _attempt(self) -> Update:
        """Return the update with its token: refused where the token is there, or may have been and was trimmed."""
        update, once, token = self.update, self.once, self.token
        if update.form is not None:
            form = update.form
            tokened: Form | None = form.tokened
            if tokened is None:  # every attempt has the parameters of `_named`; the form keeps it
                more, guard = _remembering(once, _TOKEN), _guard(once, form.when)
                tokened = form.tokened = Form(
                    *form.ops, *more, when=guard, exists=form.exists, or_absent=form.or_absent, ttl=form.ttl
                )
            return tokened.fill(update.key, **update.params, **_named(token))
        when, params = unbound(update.when)
        ops = (*update.ops, *_remembering(once, token))
        bound = Bound(_guard(once, when), {**params, **_named(token)})
        return Update(update.key, ops, bound, update.exists, update.or_absent, update.ttl)

    def _doubted(self) -> None:
        self.doubt = self.unanswered = True

    def _resolve(self, refusal: LatchworkError) -> Values | None:
        """Return the remembered result after a refusal, or None once a new token was minted; else raise the final
        error.
        """
        once, token = self.once, self.token
        had, size, oldest, newest, result, answer, now = self._look()
        if had:
            return self._remembered(result, answer)
        full = size is not None and size >= once.capacity and (oldest is None or oldest >= token)
        if full or time_of(token) > now * 1000 + AHEAD - (0 if self.outranks else MEANWHILE):
            if self.doubt:
                why = "older than the window" if full else "ahead of the record's time"
                raise self._unknown(f"its token is {why}")
            self._mint_again(now, [newest, oldest] if full else [])
            return None
        if isinstance(refusal, AlreadyExists):
            raise refusal
        if self.doubt and not (once.monotone or once.goes_on):
            return self._cancel()
        raise self._refused(doubt=self.unanswered)

    def _mint_again(self, now: int, above: Sequence[bytes | None]) -> None:
        """Mint a token above the first of these that may be one, if any are given. Raises `Corrupt` if none may be."""
        clock, key = self.store.token_clock, self.update.key
        clock.learn(self.store.seams, now)
        if above:
            sound = [token for token in above if token is not None and time_of(token) <= now * 1000 + AHEAD]
            if not sound:
                raise Corrupt(
                    f"the record {key} is damaged: bin {self.once.bin!r} is full of tokens that are more than a day "
                    "ahead of the server's time, or are not tokens: set the clocks right, and remove the bin once no "
                    "update of the record is under way",
                    key=key,
                    bins=(self.once.bin,),
                )
            clock.outrank(key, sound[0])
        else:
            clock.forget(key)  # the floor may be that of an earlier record under this key
        self.outranks = bool(above)
        self.token = clock.mint(self.store.seams, key)

    def _look(self) -> Values:
        """Read what the record remembers of the token, and of those around it, and the server's time."""
        once = self.once
        try:
            return self.store.operate(
                self.update.key,
                Compute(_has(once.bin, self.token)),
                Compute(_size(once.bin)),
                Compute(_key_at(once.bin, 0)),
                Compute(_key_at(once.bin, -1)),
                MapGet(once.bin, self.token),
                Read(once.answer or once.bin),
                Compute(SERVER_NOW),
            )
        except LatchworkError as failure:
            if once.goes_on and not isinstance(failure, NotFound | BinMismatch):
                raise self._unknown("it was refused, and why could not be read") from failure
            raise

    def _remembered(self, result: Any, answer: Any) -> Values:
        if result == CANCELLED + self.token:
            raise self._refused()
        return (result if self.once.answer is None else answer,)

    def _cancel(self) -> Values:
        """Put the token as cancelled, so that a first attempt that lands late is refused (P0.6)."""
        once, token = self.once, self.token
        guard = Bound(_fresh(once.bin, once.capacity, None), _named(token))
        ops = (MapPut(once.bin, token, CANCELLED + token, new=True), _trim(once.bin, once.capacity))
        try:
            self.store.operate(self.update.key, *ops, when=guard, ttl=self.update.ttl, repeatable=True)
        except Refused:
            reads = (Compute(_has(once.bin, token)), MapGet(once.bin, token), Read(once.answer or once.bin))
            had, result, answer = self.store.operate(self.update.key, *reads)
            if not had:
                raise self._unknown("it could not be cancelled") from None
            return self._remembered(result, answer)
        except OutcomeUnknown as failure:
            raise self._unknown("it could not be cancelled") from failure
        self.cancelled = True
        raise self._refused()

    def _refused(self, *, doubt: bool = False) -> Refused:
        """doubt: whether an attempt was not answered, and may have been applied to an earlier record under the key."""
        message = f"the guard of the update of {self.update.key} did not hold; nothing was written"
        return Refused(message, key=self.update.key, token=self.token, doubt=doubt)

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the update of {self.update.key} may have been applied: {why}; read the record before going on",
            key=self.update.key,
            token=self.token,
        )


def _has(bin: str, token: bytes) -> Bound:
    return Bound(_there(bin), {_TOKEN.name: token})


@lru_cache(maxsize=256)
def _there(bin: str) -> Expr:
    return exists(bin) & MapHas(bin, _TOKEN)


@lru_cache(maxsize=256)
def _size(bin: str) -> Expr:
    return MapSize(bin)


@lru_cache(maxsize=256)
def _key_at(bin: str, index: int) -> Expr:
    return MapKeyAt(bin, index, bytes)
