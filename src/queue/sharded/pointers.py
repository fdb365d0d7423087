"""The pointers of a shard as they are stored, read with checks (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct, field

from ...errors import Corrupt, LatchworkError
from ...inputs import is_int
from ...store import Key, Record
from ...store.decode import MAX_COUNTER, damaged, decoded
from ...store.decode import Counter as Pointer
from ...store.model import messages

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

_NONE: Mapping[int, str] = MappingProxyType({})


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
        in_turn = all(is_int(bins.get(bin, 0)) and 0 <= bins.get(bin, 0) <= MAX_COUNTER for bin in (SEAL, IN_HAND))
        return cls(
            shard, found.load, found.fire or 0, found.stream, expired,
            fire_missing=found.fire is None and found.load > 0, turn_damaged=not in_turn,
            returned=_returned(bins.get(RETURNED), found.fire or 0), expired_at=_time(bins.get(EXPIRED_AT)),
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


def _time(stored: Any) -> int:
    """Return a time for people; 0 for what cannot be one."""
    return stored if is_int(stored) and 0 < stored <= MAX_COUNTER else 0


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
