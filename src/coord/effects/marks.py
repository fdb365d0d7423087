"""Updates of records that are applied once: the record remembers each in the update itself (docs/protocols P23).

A map bin of the record has a mark for each effect: its token, until when it is kept, and its result. Where the bin is
full, older marks move to records of their own, and the bin remembers that by its generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import AlreadyExists, LatchworkError, NotFound, OutcomeUnknown, RecordTooBig, Refused, Unavailable
from ...inputs import is_int
from ...store.decode import damaged
from ...store.model.expr import (  # fmt: skip
    EXPRESSIONS,
    SERVER_NOW,
    Bound,
    Const,
    Expr,
    If,
    ListOf,
    MapHas,
    MapSize,
    MapValue,
    Param,
    has,
    largest,
    missing,
    unbound,
)
from ...store.model.ops import Compute, MapGet, MapPut, MapRemove, Put, Read
from ...store.once import TokenClock
from ...store.port import MAX_TTL, Exists, Key, RecordStore, Row, Update

BIN = "effects"
ROOM = 100
"""Entries of the bin, at most; the store copies them with each update of the record."""
GENERATION = 0
"""The entry of the bin that is no mark: present once a mark has left it, and another number each time."""
EFFECT = "effect"
"""The bin of a mark's own record."""
TURNS = 8
"""How often an effect begins again because others have changed the marks meanwhile."""
MAX_KNOWN = 1_024
"""Records of which a process remembers the generation; one that is forgotten costs two calls."""
NO_RESULT = object()
ASK = object()
"""The generation is what the process knows when it asks."""
GIVEN_UP = b""
"""In the place of an attempt: it was given up, and never will be applied."""

_TOKEN, _MARK_KEEP = Param("\0token", bytes), Param("\0keep")
_KNOWN, _ROOM = Param("\0generation"), Param("\0room")
_ATTEMPT = Param("\0attempt", bytes)
"""Named like none of the caller's, whose guard and operations they join."""
_known: WeakKeyDictionary[TokenClock, dict[tuple[Key, str], int]] = WeakKeyDictionary()
"""The generations that the process knows, by record and bin: all views of a store have one clock."""


def token_of(*parts: str) -> bytes:
    """Return the token of the effect that these parts name: 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        text = part.encode()
        digest.update(b"%d:" % len(text) + text)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Effect:
    """The way in which an update is remembered.

    token: names it among all others.
    set: of the records of marks that have left their bin.
    keep: seconds.
    bin: of the map with the marks.
    result: what to remember, a value or an expression that is evaluated after the update.
    otherwise: what to remember where the guard refuses the update; NO_RESULT = nothing, it is `Refused`.
    attempt: names this attempt, where a message goes with the update (P28); the mark has it too. None: the token does.
    known: the generation that was known before anybody else could know of the token, which is new; else ASK.
    """

    token: bytes
    set: str
    keep: int
    bin: str = BIN
    result: Any = True
    otherwise: Any = NO_RESULT
    attempt: bytes | None = None
    known: Any = ASK


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an effect, and whether it was found: an earlier attempt had made it, or one in doubt.

    attempt: the one that has applied it; None if it has no name, or if the update was refused and that was decided.
    """

    result: Any
    found: bool
    attempt: bytes | None = None


class GivenUp(Exception):
    """The upkeep has given the attempt up (P28): it was not applied, and never will be."""


def apply(store: RecordStore, update: Update, effect: Effect, *, sent: Row | None = None) -> Applied:
    """Apply the update, unless it was applied before; return its result. One call at first.

    sent: the outcome of `first_update`, if that was sent already.

    Raises `Refused`, `NotFound` or `AlreadyExists` where it was not applied, `OutcomeUnknown` where it may have been or
    may still be, and `Unavailable`, `RecordTooBig` where it was not. Raises `GivenUp`.
    """
    applied = _Attempt(store, update, effect).run(sent)
    store.seams.note("effects", kind="record", outcome="found" if applied.found else "done")
    return applied


def first_update(store: RecordStore, update: Update, effect: Effect) -> Update:
    """Return the first update that `apply` sends, for a batch. Its token is new."""
    return _Attempt(store, update, effect).marking(effect.known)


def known_generation(store: RecordStore, key: Key, bin: str) -> int | None:
    """Return the generation of a record's marks, as this process knows it. No call."""
    return _generations(store).get((key, bin))


# ---- the guard and the mark


@lru_cache(maxsize=4096)
def _guard(bin: str, moved: bool, when: Expr | None) -> Expr:
    """Return "not applied, there is room, and the generation is as known", and the caller's own guard."""
    new = ~MapHas(bin, _TOKEN) & (MapSize(bin) < _ROOM)
    if moved:
        unused = MapValue(bin, Const(GENERATION)).eq(_KNOWN) & new
    else:
        unused = missing(bin) | (new & ~MapHas(bin, Const(GENERATION)))
    return unused if when is None else unused & when


@lru_cache(maxsize=256)
def _same_generation(bin: str, moved: bool) -> Expr:
    return MapValue(bin, Const(GENERATION)).eq(_KNOWN) if moved else ~MapHas(bin, Const(GENERATION))


@lru_cache(maxsize=256)
def _next_generation(bin: str) -> Expr:
    return If(has(bin, GENERATION), largest(MapValue(bin, Const(GENERATION)) + 1, SERVER_NOW), SERVER_NOW)


@lru_cache(maxsize=4096)
def _mark(result: Expr) -> Expr:
    return ListOf((SERVER_NOW + _MARK_KEEP, result))


@lru_cache(maxsize=4096)
def _mark_of_attempt(result: Expr) -> Expr:
    return ListOf((SERVER_NOW + _MARK_KEEP, result, _ATTEMPT))


@lru_cache(maxsize=4096)
def _undecided(bin: str, when: Expr | None) -> Expr:
    """Return "nobody has given the attempt up", and the caller's own guard."""
    open_ = missing(bin) | ~MapHas(bin, _ATTEMPT)
    return open_ if when is None else open_ & when


_TRUE = Const(True)
_RESULT = Param("\0result")


def _marked(result: Any, keep: int, attempt: bytes | None = None) -> Bound:
    """Return the mark with this result, a value or an expression."""
    expr, params = unbound(result)
    if not isinstance(expr, EXPRESSIONS):
        expr = _TRUE if result is True else Const(result)
    params = {**params, _MARK_KEEP.name: keep * 1000}
    if attempt is None:
        return Bound(_mark(expr), params)
    return Bound(_mark_of_attempt(expr), {**params, _ATTEMPT.name: attempt})


@dataclass(frozen=True, slots=True)
class _Marks:
    """The marks of a record as they were read, and the server's time in ms.

    generation: None = no mark has left the bin.
    """

    entries: Mapping[bytes, Sequence[Any]]
    generation: int | None
    now: int


class _Attempt:
    """One effect on its way."""

    def __init__(self, store: RecordStore, update: Update, effect: Effect) -> None:
        self.store, self.update, self.effect = store, update, effect
        self.key, self.when, self.params = update.key, *unbound(update.when)
        self.place = (update.key, effect.bin)
        self.doubt = self.emptied = False

    def run(self, sent: Row | None = None) -> Applied:
        """Return the result. Raises the errors of `apply`."""
        known = self.effect.known
        for _ in range(TURNS):
            generation = _generations(self.store).get(self.place) if known is ASK else known
            # 1. A mark may have left the record's bin; not that of a token that was new a moment ago.
            if generation is not None and known is ASK:
                found = self._own_record()
                if found is not None:
                    return found
            known = ASK
            # 2. Apply the update, and mark it.
            row, sent = sent, None
            try:
                return self._send(generation) if row is None else self._new(row)
            except LatchworkError as failure:
                self.doubt = self.doubt or bool(failure.details.get("doubt"))
                if not isinstance(failure, Refused | AlreadyExists | RecordTooBig):
                    raise self._final(failure) from failure
                refusal = failure
            # 3. The marks say why it was refused.
            marks = self._look()
            if marks is None:
                continue  # the record has gone since
            if (mark := marks.entries.get(self.effect.token)) is not None:
                return self._found(mark, marks.now)
            if self.effect.attempt in marks.entries:
                raise GivenUp
            if marks.generation != generation:
                _learn(self.store, self.place, marks.generation)
            elif self._is_full(marks, refusal):
                self._make_room(marks, everything=isinstance(refusal, RecordTooBig))
            elif isinstance(refusal, RecordTooBig | AlreadyExists) or self.effect.otherwise is NO_RESULT:
                raise self._final(refusal)
            elif self._decide(generation):
                return Applied(self.effect.otherwise, found=False)
        raise self._final(
            Unavailable(f"the effect on {self.key} was not applied: others changed its marks each time; try again")
        )

    def _guarded(self, generation: int | None, when: Expr | None, params: Mapping[str, Any]) -> Bound:
        known: dict[str, Any] = {} if generation is None else {_KNOWN.name: generation}
        if self.effect.attempt is not None:
            when, known = _undecided(self.effect.bin, when), {**known, _ATTEMPT.name: self.effect.attempt}
        guard = _guard(self.effect.bin, generation is not None, when)
        return Bound(guard, {**params, **known, _TOKEN.name: self.effect.token, _ROOM.name: ROOM})

    def _send(self, generation: int | None) -> Applied:
        return self._new(self.store.repeat(self.marking(generation)))

    def _new(self, values: Row) -> Applied:
        if isinstance(values, LatchworkError):
            raise values
        return Applied(values[-1][1], found=False, attempt=self.effect.attempt)

    def marking(self, generation: int | None) -> Update:
        """Return the update with its mark, and its guard."""
        update, effect = self.update, self.effect
        ops = (
            *update.ops,
            MapPut(effect.bin, effect.token, _marked(effect.result, effect.keep, effect.attempt)),
            MapGet(effect.bin, effect.token),
        )
        or_absent = update.exists is not Exists.UPDATE or update.or_absent
        guard = self._guarded(generation, self.when, self.params)
        return Update(self.key, ops, guard, update.exists, or_absent, update.ttl)

    def _decide(self, generation: int | None) -> bool:
        """Remember that the guard refused the update; whether nothing came between."""
        effect = self.effect
        try:
            self.store.operate(
                self.key,
                MapPut(effect.bin, effect.token, _marked(effect.otherwise, effect.keep)),
                when=self._guarded(generation, None, {}),
                repeatable=True,
            )
        except (Refused, NotFound):
            return False
        except LatchworkError as failure:
            raise self._final(failure) from failure
        return True

    # ---- what the record remembers

    def _look(self) -> _Marks | None:
        """Read the marks; None if there is no record. Raises `Corrupt` where they are damaged."""
        try:
            entries, now = self.store.operate(self.key, Read(self.effect.bin), Compute(SERVER_NOW))
        except NotFound:
            return None
        except LatchworkError as failure:
            raise self._final(failure) from failure
        if not isinstance(entries, dict | None):
            kind = type(entries).__name__
            raise damaged(self.key, f"bin {self.effect.bin!r} is a {kind}, and no map of effects")
        marks = dict(entries or {})
        generation = marks.pop(GENERATION, None)
        if not (generation is None or is_int(generation)) or not all(map(is_mark, marks.values())):
            raise damaged(self.key, f"bin {self.effect.bin!r} holds an entry that is not a mark of an effect")
        return _Marks(marks, generation, now)

    def _found(self, mark: Sequence[Any], now: int) -> Applied:
        """Return the result of an effect that was applied, and keep its mark for longer where half of its time is
        over.
        """
        until, result, *attempts = mark
        attempt = attempts[0] if attempts else None
        if attempt == GIVEN_UP:
            raise GivenUp
        keep = self.effect.keep
        if until - now < keep * 500:
            marked = _marked(_RESULT, keep, attempt)
            longer = Put(EFFECT, Bound(marked.expr, {**marked.params, _RESULT.name: result}))
            with suppress(LatchworkError):  # the next attempt that finds it does so
                self.store.operate(
                    self._key_of(self.effect.token), longer, exists=Exists.ANY, ttl=keep, repeatable=True
                )
        return Applied(result, found=True, attempt=attempt)

    # ---- marks that have left their bin

    def _key_of(self, token: bytes) -> Key:
        return own_record(self.effect.set, token, self.effect.bin, self.key)

    def _own_record(self) -> Applied | None:
        """Return the result by the mark's own record; None if there is none. Raises `GivenUp`."""
        tokens = [self.effect.token, *([] if self.effect.attempt is None else [self.effect.attempt])]
        reads = [Update(self._key_of(token), _MARK) for token in tokens]
        for read, row in zip(reads, self.store.repeat_many(reads), strict=True):
            if isinstance(row, NotFound):
                continue
            if isinstance(row, LatchworkError):
                raise self._final(row)
            mark, now = row
            if not is_mark(mark):
                raise damaged(read.key, f"bin {EFFECT!r} holds an entry that is not a mark of an effect")
            return self._found(mark, now)
        return None

    def _is_full(self, marks: _Marks, refusal: LatchworkError) -> bool:
        if isinstance(refusal, RecordTooBig):
            return bool(marks.entries) and not self.emptied
        return len(marks.entries) + (marks.generation is not None) >= ROOM

    def _make_room(self, marks: _Marks, *, everything: bool) -> None:
        """Move the older half of the marks, or all, to records of their own. Two calls, or three."""
        self.emptied = everything
        oldest = sorted(marks.entries.items(), key=lambda entry: entry[1][0])
        leaving = oldest if everything else oldest[: max(1, len(oldest) // 2)]
        # 1. Each gets a record of its own, for as long as it is to be kept.
        rows = [
            Update(
                self._key_of(token),
                (Put(EFFECT, list(mark)),),
                exists=Exists.CREATE,
                ttl=min(-(-left // 1000), MAX_TTL),
            )
            for token, mark in leaving
            if (left := mark[0] - marks.now) > 0
        ]
        for row in self.store.repeat_many(rows) if rows else ():
            if isinstance(row, LatchworkError) and not isinstance(row, AlreadyExists):
                raise self._final(row)
        # 2. Then all leave the bin at once, unless others have changed it.
        bin, known = self.effect.bin, {} if marks.generation is None else {_KNOWN.name: marks.generation}
        same = Bound(_same_generation(bin, marks.generation is not None), known)
        ops = (
            MapRemove(bin, tuple(token for token, _ in leaving)),
            MapPut(bin, GENERATION, _next_generation(bin)),
            MapGet(bin, GENERATION),
        )
        try:
            (generation,) = self.store.operate(self.key, *ops, when=same, repeatable=True)
            _learn(self.store, self.place, generation)
        except (Refused, NotFound):
            return
        except LatchworkError as failure:
            raise self._final(failure) from failure

    # ---- how it ends

    def _final(self, failure: LatchworkError) -> LatchworkError:
        """Return the error of the caller: with an attempt in doubt, no failure of a later step is an answer."""
        if self.doubt and not isinstance(failure, OutcomeUnknown):
            return OutcomeUnknown(
                f"the effect on {self.key} may have been applied, or may still be: an attempt was not answered, and "
                f"then {failure.code}; ask again, or let the next delivery of the message ask",
                key=self.key,
            )
        if isinstance(failure, Refused):
            return Refused(f"the guard of the effect on {self.key} did not hold; nothing was written", key=self.key)
        return failure


_MARK = (Read(EFFECT), Compute(SERVER_NOW))


def own_record(set: str, token: bytes, bin: str, key: Key) -> Key:
    """Return the key of the record that a mark of this bin of a record has once it has left the bin."""
    return Key(set, f"E/{token_of(token.hex(), bin, *key).hex()}")


def is_mark(mark: Any) -> bool:
    """Whether it can be a mark: until when, the result, and perhaps the attempt."""
    return (
        isinstance(mark, list)
        and is_int(mark[0] if mark else None)
        and (len(mark) == 2 or (len(mark) == 3 and isinstance(mark[2], bytes)))
    )


def _generations(store: RecordStore) -> dict[tuple[Key, str], int]:
    return _known.setdefault(store.token_clock, {})


def _learn(store: RecordStore, place: tuple[Key, str], generation: int | None) -> None:
    known = _generations(store)
    if len(known) >= MAX_KNOWN:
        known.clear()
    if generation is None:
        known.pop(place, None)
    else:
        known[place] = generation
