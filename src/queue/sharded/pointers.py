"""The pointers of a subqueue's shards: how many slots were reserved in each, and how many claimed (docs/protocols P5).

Pointers count from 1. Producers reserve them, and consumers claim them, exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct, field

from ...errors import Corrupt, LatchworkError, NotFound, Refused, Unavailable, Unreadable
from ...inputs import is_int
from ...store import NEVER, Add, Bin, Exists, Key, Once, Param, Put, Read, Record, RecordStore, Update, missing
from ...store.decode import MAX_COUNTER, damaged, decoded
from ...store.decode import Counter as Pointer
from ...store.model import messages
from ...store.model.expr import SINCE_UPDATE, Bound, ListOf, smallest
from ...store.model.form import Form
from ...store.model.ops import Compute
from ..rows import read_each
from .bell import Bell
from .hooks import NOBODY, Readers
from .rules import GROUPS
from .slots import Claim, ShardHolder

LOAD, FIRE, FROM, STREAM, EXPIRED = messages.LOAD, messages.FIRE, messages.FROM, messages.STREAM, "expired"
IN_HAND, SEAL = "in-hand", "claim-fence"
RETURNED = "returned"
"""The slots below FIRE whose messages were given back, each with the delivery that did it: they come first."""
EXPIRED_AT = "expired-at"
"""When the last of the claims that found no message was noted (ms, server)."""
KNOWN = "swept"
"""The bin that a sweep puts into the pointers of a shard before it sweeps them."""
STATE_BINS = (LOAD, FIRE, STREAM, EXPIRED, EXPIRED_AT, SEAL, IN_HAND, RETURNED)
"""The bins that `ShardPointers.of` reads."""

MAX_UNFIRED = messages.MAX_UNFIRED

CLAIMS = 64
"""Claims that a shard remembers, fixed for the layout's life."""
MAX_CLAIM = 1_000
"""Slots that anybody claims in one call: what a claim is remembered to have claimed beyond that is damaged."""

_NOT_AHEAD = missing(FIRE) | Bin(FIRE).eq(0) | (Bin(FIRE) <= Bin(LOAD))
"""If more was fired than loaded, the record is damaged, and loading more would hide that."""
_RESERVING = Form(
    *(Add(LOAD, Param("n")), Add(FIRE, 0), Read(LOAD), Read(FIRE), Read(STREAM), Read(GROUPS)),
    when=_NOT_AHEAD, exists=Exists.ANY, or_absent=True, ttl=NEVER,
)  # fmt: skip
_UNFIRED = (Bin(FIRE) < Bin(LOAD)) & missing(STREAM)
ADVANCED = smallest(Bin(FIRE) + Param("n"), Bin(LOAD))
CLAIM = Once(capacity=CLAIMS, bin="claims", result=ListOf((Bin(FROM), Bin(FIRE), Bin(LOAD))))
_CLAIMING = Form(Put(FROM, Bin(FIRE)), Put(FIRE, ADVANCED), when=_UNFIRED, ttl=NEVER, once=CLAIM)
UNSEALED = missing(SEAL) | (Bin(SEAL) <= Param("fence"))
_IN_TURN = {
    more: Form(
        Put(FROM, Bin(FIRE)),
        *([] if more else [Put(IN_HAND, Bin(FIRE))]),
        Put(FIRE, ADVANCED),
        when=_UNFIRED & UNSEALED,
        ttl=NEVER,
        once=CLAIM,
    )
    for more in (False, True)
}

_NONE: Mapping[int, str] = MappingProxyType({})
_TEXT_OR_NONE = (str, type(None))


class Pointers(Struct, frozen=True):
    """The pointers of a shard, as they are stored. fire None: another library has loaded the shard and not fired."""

    load: Pointer = field(default=0, name=LOAD)
    fire: Pointer | None = field(default=None, name=FIRE)
    stream: str | None = field(default=None, name=STREAM)

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any]) -> Pointers:
        """Read the pointers from the bins. Raises `Corrupt` if no reservations and claims lead to them."""
        found = decoded(cls, key, bins)
        unfired = found.load - (found.fire or 0)
        if not 0 <= unfired <= MAX_UNFIRED:
            raise damaged(key, f"{LOAD} is {found.load} and {FIRE} is {found.fire}")
        return found


class ShardPointers(NamedTuple):
    """The pointers of a shard: how many slots were loaded and fired, which stream owns it, claims that found no
    message.

    fire_missing: there is no count of fired slots, so nothing can be claimed: `Shards.begin_firing`.
    turn_damaged: nothing can be claimed in order, as the turn cannot be read; `begin_firing` repairs it too.
    before: no message up to this slot is for the reader: a group that began later.
    returned: the slots whose messages were given back, each with the delivery that did it.
    gone: slots that wait and hold no message any more, as far as that was looked for (`depth.py`).
    holes: slots behind the first message that waits, and that hold none, as far as that was looked for.
    in_order: whether an ordered consumer has ever worked the shard.
    head: some bins of the first message that waits, as far as that was looked for.
    expired_at: when the last claim that found no message was noted: ms by the server's clock, 0 = not known.
    damage: what is wrong with the record. Then nothing counts as loaded, as nothing can be received, and the shard is
        not used; the sweeper moves its messages to other shards.
    """

    shard: int
    loaded: int
    fired: int
    stream: str | None
    expired: int
    fire_missing: bool = False
    turn_damaged: bool = False
    damage: Corrupt | None = None
    before: int = 0
    returned: Mapping[int, str] = _NONE
    gone: int = 0
    head: Record | None = None
    expired_at: int = 0
    holes: int = 0
    in_order: bool = False

    @property
    def waiting(self) -> int:
        """How many slots wait to be handed out, without the ones that are known to hold no message any more."""
        return self.loaded - self.fired - self.gone - self.holes + len(self.returned)

    @classmethod
    def of(cls, shard: int, key: Key, bins: Mapping[str, Any]) -> ShardPointers:
        """Return the state that the bins of the shard's record say."""
        counted = bins.get(EXPIRED, 0)
        expired: int = counted if is_int(counted) and counted > 0 else 0  # a figure for people
        try:
            found = Pointers.of(key, bins)
        except Corrupt as failure:
            return cls(shard, 0, 0, None, expired, damage=failure)
        at: Any = bins.get(EXPIRED_AT)
        in_turn = all(is_int(bins.get(bin, 0)) and 0 <= bins.get(bin, 0) <= MAX_COUNTER for bin in (SEAL, IN_HAND))
        return cls(
            shard, found.load, found.fire or 0, found.stream, expired,
            fire_missing=found.fire is None and found.load > 0, turn_damaged=not in_turn,
            returned=_returned(bins.get(RETURNED), found.fire or 0),
            expired_at=at if is_int(at) and 0 < at <= MAX_COUNTER else 0,
            in_order=SEAL in bins or IN_HAND in bins,  # the latter is 0 from the first claim on
        )  # fmt: skip

    @classmethod
    def read(cls, shard: int, key: Key, record: Record | LatchworkError | None) -> ShardPointers:
        """Return what the shard's record says; one that cannot be read is damaged."""
        if isinstance(record, LatchworkError):
            damage = record if isinstance(record, Corrupt) else Corrupt(str(record))
            return cls(shard, 0, 0, None, 0, damage=damage)
        return cls.of(shard, key, record.bins if record else {})

    def checked(self) -> ShardPointers:
        """Return this state. Raises `Corrupt` if the record is damaged."""
        if self.damage is not None:
            raise self.damage
        return self


def _returned(stored: Any, fired: int) -> Mapping[int, str]:
    """Return the slots that were given back, as they are stored; what is damaged is left to the sweep."""
    if not stored or not isinstance(stored, Mapping):
        return _NONE
    return {
        int(pointer): by
        for pointer, by in stored.items()
        if isinstance(pointer, str) and pointer.isascii() and pointer.isdigit() and len(pointer) < 20
        and 0 < int(pointer) <= fired and isinstance(by, str)
    }  # fmt: skip


class SubqueuePointers:
    """The pointers of one subqueue: of each shard how many slots producers have reserved, and consumers claimed.

    ttl: seconds that a message lives.  sweep: the sweep duration in seconds.
    """

    state_bins: tuple[str, ...] = STATE_BINS

    def __init__(self, store: RecordStore, client_id: str, name: str, shards: int, *, ttl: int, sweep: float) -> None:
        self.store, self.client_id, self.name, self.shards, self.ttl, self.sweep = (
            store, client_id, name, shards, ttl, sweep,
        )  # fmt: skip
        self.readers: Readers = NOBODY
        self.meta_set, self._prefix = f"{client_id}_meta_set", f"{name}_SHARD_"
        self.bell = Bell(store, Key(self.meta_set, f"{name}_BELL"))

    def pointers_key(self, shard: int) -> Key:
        """Return the key of a shard's pointers."""
        return Key(self.meta_set, f"{self._prefix}{shard}_POINTERS")

    def states(self, shards: Sequence[int] | None = None) -> list[ShardPointers]:
        """Return the pointers of these shards, or of all: one batch read. A shard that was never used counts 0.

        A caller that needs every shard asks each for `checked`; otherwise damaged shards are passed over.
        """
        numbers = range(self.shards) if shards is None else shards
        return self.states_of(numbers, read_each(self.store, self.state_keys(numbers), *self.state_bins))

    def state_keys(self, shards: Sequence[int]) -> list[Key]:
        """Return the keys of the records that `states_of` needs, with `state_bins`."""
        return [self.pointers_key(n) for n in shards]

    def states_of(
        self, shards: Sequence[int], records: Sequence[Record | LatchworkError | None]
    ) -> list[ShardPointers]:
        """Return the states of these shards by the records of `state_keys`; a record that cannot be read is damaged."""
        return [ShardPointers.read(n, self.pointers_key(n), record) for n, record in zip(shards, records, strict=True)]

    def states_with(self, *bins: str) -> list[tuple[ShardPointers, Mapping[str, Any]]]:
        """Return the pointers of all shards, each with some more bins of its record, as they are then or later. One
        call. Raises the store's errors, and `Corrupt` for a damaged shard.
        """
        keys = [self.pointers_key(n) for n in range(self.shards)]
        found = [one.bins if one else {} for one in self.store.get_many(keys, LOAD, FIRE, *bins)]
        return [(ShardPointers.of(n, keys[n], there), there) for n, there in enumerate(found)]

    def settled(self) -> list[int]:
        """Return for each shard the pointer below which no message can exist: what was fired, if all of it has expired.

        A shard to which nothing was written for longer than a message lives has no message left; of any other this is
        not known. One call.
        """
        reads = (Read(FIRE), Compute(SINCE_UPDATE))
        rows = self.store.repeat_many([Update(self.pointers_key(n), reads) for n in range(self.shards)])
        lived = (self.ttl + self.sweep) * 1000
        found = rows.raise_unless(NotFound, Corrupt, Unreadable).values((0, 0))
        return [fired if since > lived and is_int(fired) else 0 for fired, since in found]

    def begin_firing(self, states: Sequence[ShardPointers]) -> None:
        """Make shards claimable that another library has loaded and not fired, or whose turn cannot be read. No call,
        or one for them.

        Adding 0 is harmless at any time. Forgetting the turn lets a late claim of a deposed holder come before its
        successor's. If it fails, the next look begins again.
        """
        begin, forget = (Add(FIRE, 0),), (Put(SEAL, None), Put(IN_HAND, None))
        amiss = [state for state in states if state.fire_missing or state.turn_damaged]
        if amiss:
            self.store.repeat_many([
                Update(self.pointers_key(state.shard), begin * state.fire_missing + forget * state.turn_damaged)
                for state in amiss
            ])  # fmt: skip

    # ---- reserved by producers

    def reserve(self, counts: Mapping[int, int]) -> dict[int, int | LatchworkError]:
        """Reserve pointers: for each shard the first of `n`, or the error. One call.

        One made twice leaves holes (P1). Where a shard had nothing left to fire, the next `write` rings the bell.
        """
        seen = [self.readers.loaded(shard) for shard in counts]
        rows = self.store.repeat_many([_RESERVING.fill(self.pointers_key(shard), n=n) for shard, n in counts.items()])
        firsts: dict[int, int | LatchworkError] = {}
        undone = False
        for (shard, n), before, row in zip(counts.items(), seen, rows, strict=True):
            if isinstance(row, LatchworkError):
                firsts[shard] = self._not_reserved(shard, row)
                continue
            load, fire, stream, others = row
            if not (
                0 <= fire <= load <= MAX_COUNTER and load - fire <= MAX_UNFIRED and isinstance(stream, _TEXT_OR_NONE)
            ):
                wrong = f"{LOAD} is {load}, {FIRE} is {fire}, and {STREAM} is a {type(stream).__name__}"
                firsts[shard] = damaged(self.pointers_key(shard), wrong)
                continue
            firsts[shard] = first = load - n + 1
            undone = undone or first <= before
            self.readers.note(shard, load, others)
            if fire >= load - n or others:  # how far these are is not known here
                self.bell.ring_later()
        if undone:  # the store came back empty, or older, and nothing that was noted is true any more
            self.readers.forget()
        return firsts

    def forget_reserved(self) -> None:
        """Forget what was reserved last, as that may be undone: LOAD is then lower."""
        self.readers.forget()
        self.bell.ring_later()  # it may have been due for other messages too

    def _not_reserved(self, shard: int, failure: LatchworkError) -> LatchworkError:
        """Return why no pointers were reserved: `Corrupt` if they would never be claimed."""
        if isinstance(failure, Unreadable):  # some were, and nobody can tell which
            return Corrupt(str(failure), **failure.details)
        if not isinstance(failure, Refused):
            return failure
        try:
            self.states([shard])[0].checked()
        except LatchworkError as damage:
            return damage
        return Unavailable(f"{self.name}: shard {shard} was damaged, and is not any more; try again")

    # ---- claimed by consumers

    def claim(
        self, shard: int, n: int, turn: ShardHolder | None = None, *, token: bytes | None = None, is_new: bool = False
    ) -> Claim | None:
        """Claim up to `n` pointers of a shard, exactly once; None if there is nothing to claim. One call.

        turn: the fence of the holder of the shard's lock; None also if a later holder has sealed the shard.
        token: of a claim whose outcome was unknown, from the error's details, to repeat it. The answer may then be that
            of the first attempt.
        is_new: it was not sent yet: it is what `new_token` has returned.

        Raises `Corrupt` if the shard is damaged. If only the memory of claims is damaged, it is given up: then a claim
        in doubt may be made twice, and slots that are never stamped are swept.
        """
        update = self.claiming(shard, n, turn)
        try:
            try:
                (result,) = self.store.once(update, token=token, is_new=is_new)
            except Corrupt:
                self.store.operate(update.key, Put(CLAIM.bin, None), ttl=NEVER, repeatable=True)
                (result,) = self.store.once(update, token=token, is_new=is_new)
        except (Refused, NotFound):
            return None
        claim, most = Claim(*result), n if token is None or is_new else max(n, MAX_CLAIM)
        if not (0 <= claim.after <= claim.last <= claim.after + most and claim.loaded - claim.last <= MAX_UNFIRED):
            raise damaged(update.key, f"{FIRE} was {claim.after} and {LOAD} is {claim.loaded}")
        return claim

    def new_token(self, shard: int) -> bytes:
        """Return a token for a claim of this shard, so that another process can repeat it, should this one be killed.
        No call.
        """
        return self.store.token_clock.mint(self.store.seams, self.pointers_key(shard))

    def claiming(self, shard: int, n: int, turn: ShardHolder | None) -> Update:
        """Return the update that claims up to `n` pointers of a shard."""
        key = self.pointers_key(shard)
        return _CLAIMING.fill(key, n=n) if turn is None else _IN_TURN[turn.more].fill(key, n=n, fence=turn.fence)

    def seal(self, shard: int, fence: int) -> range:
        """Refuse the claims of earlier holders of the shard's lock from now on; the pointers that the last one had.

        It may have been done with some of them, or with all. None where a later holder has sealed it. One call.
        """
        seal = (Put(SEAL, fence), Read(IN_HAND), Read(FIRE))
        when = Bound(UNSEALED, {"fence": fence})
        try:
            hand, fired = self.store.operate(self.pointers_key(shard), *seal, when=when, ttl=NEVER, repeatable=True)
        except (Refused, NotFound):
            return range(0)
        known = is_int(hand) and is_int(fired) and 0 <= hand <= fired  # else what was in hand is left to the sweep
        return range(hand + 1, fired + 1) if known else range(0)
