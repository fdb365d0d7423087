"""At most one message of a key in a queue, from its publish until it is done (docs/protocols P30).

The record of a key names the message that has it. Whether that message is over is asked when the next one comes. The
publisher names its message there before it writes it, so that two that come at once see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from ....errors import AlreadyExists, Corrupt, InvalidRequest, LatchworkError, NotFound, Refused, Unavailable
from ....inputs import checked_choice, checked_text
from ....plain import shown
from ....retry import Poll
from ....store import Bin, Param, Put, Update, exists, missing
from ....store.model.expr import Bound
from ....store.model.ops import Op
from ..delayed.entries import Due
from ..delayed.stored import IF, Entry
from ..groups.stamps import ACKED
from ..handles import QueueHandle
from ..places import MAIN, SIDE, TAKEN, dropping, named
from ..pointers import STREAM
from ..rules import ALONE, GROUPS, SEEN
from ..slots import Slot, WriteResult
from ..status import Finder, Found, State, find_message
from ..transfer import reserve_slots
from ..unique_keys import YOUNG, Holder
from .prepared import Prepared
from .publish import Storing

ON_DUPLICATE = ("keep", "raise", "replace")
MAX_KEY = 256
ROUNDS = 20
"""How often a publisher begins again, as others publish the key, or its message moves."""
PAUSES = Poll(low=0.005, high=0.2, factor=1.5, jitter=0.5)
LIVES = frozenset({State.READY, State.RUNNING, State.RETRYING, State.DELAYED})

_DELIVERY = Bin("delivery", str)
_WAITS = (
    exists("data") & Bin("msgId", str).eq(Param("id", str)) & missing("cancel")
    & (missing("replaced") | Bin("replaced", str).eq(Param("me", str)) | Bin("replaced", str).eq(Param("old", str)))
)  # fmt: skip
_WAITS_HERE = _WAITS & ALONE & missing(TAKEN) & (missing("delivery") | _DELIVERY.eq(SEEN))
_WAITS_LATER = _WAITS & missing("moving") & missing("cancelled") & missing(IF)


Find: TypeAlias = Callable[[str], Finder]


def storing_unique(find: Find, unique: Any, on_duplicate: Any, *, message_id: str | None, dedup: str | None) -> Storing:
    """Return what stores a message with this key. Raises `InvalidRequest` where anything that goes with it is wrong.

    find: looks for a message of the queue by its id.
    """
    checked_text("unique", unique)
    if len(unique) > MAX_KEY:
        raise InvalidRequest(f"unique has {len(unique)} characters; give at most {MAX_KEY}, as a digest")
    checked_choice("on_duplicate", on_duplicate, ON_DUPLICATE)
    if message_id is not None or dedup is not None:
        other = "dedup" if message_id is None else "message_id"
        raise InvalidRequest(f"unique with {other}: the message has the id that its key has; give one of them")
    return lambda queue, messages, terms: [_Attempt(queue, find, messages[0], unique, terms.due).run(on_duplicate)]


def refuse_unique(unique: str | None, where: str) -> None:
    """Raise `InvalidRequest` where a key was given to what publishes in groups."""
    if unique is not None:
        raise InvalidRequest(f"unique with {where}: publish that message by `ShardedQueue.publish`, alone")


class _Attempt:
    """One publish of one message, unless one of its key lives.

    Raises `AlreadyExists` where a message that lives is not to be kept, or cannot be replaced; `Unavailable` where
    others published the key all the time, and nothing was published; and what publishing raises.
    """

    def __init__(self, queue: QueueHandle, find: Find, message: Prepared, unique: str, due: Due | None) -> None:
        queue.open_for_publishing()
        self._queue, self._find, self._keys = queue, find, queue.unique_keys
        self._unique, self._due = unique, due
        self._store, self._seams = queue.store, queue.store.seams
        self._envelope, self._bound = replace(message.envelope, unique=unique), message.shard is not None
        self._shard = queue.turns(1) % queue.config.shards if message.shard is None else message.shard
        self._me = message.envelope.msg_id
        self._ahead = 0 if due is None else queue.delayed.ahead(due)
        self._slot: Slot | None = None
        self._since = 0.0
        self._seen: dict[str, float] = {}
        self._never = set[str]()
        """Ids under which no message was written, and none will be."""

    def run(self, on_duplicate: str) -> str:
        for turn in range(1, ROUNDS + 1):
            # 1. Who has the key, and does that message live?
            holder = self._keys.holder(self._unique)
            if holder is not None and holder.message_id not in self._never:
                found = self._found(holder)
                if found is None:
                    self._seams.sleep(PAUSES.pause(turn, self._seams))
                    continue
                if found.status.state in LIVES:
                    if on_duplicate != "replace" or self._is_out_of_reach(holder, found):
                        return self._kept(holder, found, on_duplicate)
                    if self._replaced(holder, found):
                        return self._ended(holder.message_id)
                    self._seams.sleep(PAUSES.pause(turn, self._seams))
                    continue
                if not self._is_over(found):
                    continue
            # 2. It is over, or never was: the key names this message from now on, or another publisher's.
            name = self._named()
            if not self._keys.claim(self._unique, name, holder.message_id if holder else None, self._ahead):
                continue
            # 3. Write the message. Where its place was sealed meanwhile, it begins again under another name.
            if self._written(name):
                self._queue.store.seams.note("published", 1, queue=self._queue.config.name, outcome="published")
                return name
            self._never.add(name)
        self._ended("")
        raise Unavailable(
            f"{shown(self._queue.name)}: the message of the key {shown(self._unique)} moved, or others published one, "
            "all the time; nothing was published: try again"
        )

    # ---- the message that has the key

    def _found(self, holder: Holder) -> Found | None:
        """Return where it is; None where that is not known yet."""
        # By both clocks, as the server's may have been set back.
        now = self._seams.monotonic()
        is_young = holder.is_young and now - self._seen.setdefault(holder.message_id, now) < YOUNG / 1000
        find, seal = self._find(holder.message_id), None
        find.server_ms = holder.now
        if not is_young:
            queue, at = self._queue, find.first
            later = int(queue.pointers.sweep) + 1
            seal = queue.delayed.sealing(holder.message_id, later) if at is None else queue.pointers.sealing(at.slot)
        found = find_message(find, seal)
        is_known = found.status.state in LIVES or found.status.state is State.PARKED or not is_young
        return found if is_known and found.certain else None

    def _kept(self, holder: Holder, found: Found, on_duplicate: str) -> str:
        """Answer with the message that has the key."""
        if found.place is not None and found.place.slot is None and "moving" not in found.bins:
            # Who stored it may have died before its id was in a bucket.
            due = Entry.of(found.bins).due
            self._enter(found.place.entry, max(due, holder.now), holder.now)
        if on_duplicate == "keep":
            return self._ended(holder.message_id)
        self._ended("")
        why = "is in hand, and cannot be replaced" if on_duplicate == "replace" else f"is {found.status.state.value}"
        if on_duplicate == "replace" and found.status.state is not State.RUNNING:
            why = "is cancelled, or groups or a stream read it, and it cannot be replaced"
        raise AlreadyExists(
            f"the message {shown(holder.message_id)} of the key {shown(self._unique)} in queue "
            f"{shown(self._queue.name)} {why}; nothing was published",
            message_id=holder.message_id, message_ids=[holder.message_id],
        )  # fmt: skip

    def _is_over(self, found: Found) -> bool:
        """Whether a message that does not live never comes again. A delayed one whose life is over is cancelled, with
        two calls: by the clock of another server it may not be over yet. False where it is on its way meanwhile.
        """
        if found.status.state is not State.EXPIRED or found.place is None:
            return True
        return self._queue.delayed.cancel(found.place.entry)

    def _is_out_of_reach(self, holder: Holder, found: Found) -> bool:
        """Whether it cannot be replaced: a handler has it, somebody has cancelled it, or others read it as well."""
        if found.status.state is State.RUNNING or found.status.cancelled or found.bins.keys() & {GROUPS, ACKED}:
            return True
        place = found.place
        if place is None:
            return False
        if place.slot is None:
            # An entry has the id of its message as its name, unless the message was handed out: then groups have it.
            shard = max(0, Entry.of(found.bins).shard)
            return place.entry != holder.message_id and bool(self._read_of_shard(shard, GROUPS))
        if place.side == SIDE:  # as above
            return bool(self._read_of_shard(place.slot.shard, GROUPS))
        # A stream reads messages twice, and they must not differ.
        return place.side == MAIN and self._read_of_shard(place.slot.shard, STREAM) is not None

    def _read_of_shard(self, shard: int, bin: str) -> Any:
        """Return a bin of a shard's pointers. One call."""
        found = self._store.get(self._queue.pointers.pointers_key(shard), bin)
        return None if found is None else found.bins.get(bin)

    def _replaced(self, holder: Holder, found: Found) -> bool:
        """Put this message in its place; False where it has moved meanwhile."""
        place, old = found.place, found.bins.get("replaced")
        assert place is not None  # noqa: S101 - it lives
        find = self._find(holder.message_id)
        params = {"id": holder.message_id, "me": self._me, "old": old if isinstance(old, str) else self._me}
        ops: tuple[Op, ...] = (
            Put("data", self._envelope.data), Put("headers", self._envelope.headers), Put("attempts", 0),
            Put("enqueuedAt", self._envelope.enqueued_at), Put("reason", None), Put("lastError", None),
            Put("replaced", self._me),
        )  # fmt: skip
        at = holder.now if self._due is None else self._due.ms if self._due.absolute else holder.now + self._due.ms
        at = max(at, holder.now)
        if place.slot is not None:
            if place.side == SIDE:  # where a shovel goes by it
                ops = (*ops, Put("notBefore", None if self._due is None else at))
            update = Update(find.key(place), ops, Bound(_WAITS_HERE, params), ttl=find.sides[place.side].ttl)
        else:
            # 1. A later bucket names it first. The earlier one leaves out what is due later.
            self._enter(place.entry, at, holder.now)
            # 2. Then its time and its payload.
            ttl = self._queue.delayed.kept + (at - holder.now) // 1000
            update = Update(find.key(place), (*ops, Put("due", at)), Bound(_WAITS_LATER, params), ttl=ttl)
        row, _ = self._store.repeat_many([update, self._keys.keeping(self._unique, holder.message_id, self._ahead)])
        if isinstance(row, LatchworkError) and not isinstance(row, NotFound | Refused):
            raise row
        return not isinstance(row, LatchworkError)

    def _enter(self, entry: str, at: int, now: int) -> None:
        """Put a delayed message into the bucket of that time. Raises why that failed."""
        failure = self._queue.delayed.enter_again([entry], at, ahead=at - now)
        if failure is not None:
            raise failure

    # ---- this message

    def _named(self) -> str:
        """Return the name of this message: that of its slot, which is reserved unless one is left. One call, or none.

        A delayed message has another name each time.
        """
        if self._due is not None:
            self._since, me = self._seams.boottime(), self._me if not self._never else self._seams.unique()
            return me
        for _ in range(self._queue.config.shards):
            if self._slot is not None:
                break
            self._since = self._seams.boottime()
            slots, failures = reserve_slots(self._queue.pointers, {0: self._shard})
            self._slot = slots.get(0)
            if 0 in failures and (self._bound or not isinstance(failures[0], Corrupt)):
                raise failures[0]
            if 0 in failures:  # of a damaged shard: the next one
                self._shard = (self._shard + 1) % self._queue.config.shards
        if self._slot is None:
            raise failures[0]
        return named(self._queue.pointers.name, self._me, self._envelope.enqueued_at // 1000, self._slot)

    def _written(self, name: str) -> bool:
        """Write the message; False where it is not there, and never will be."""
        envelope = replace(self._envelope, msg_id=name)
        if self._due is not None:
            shard = self._shard if self._bound else None
            (entered,) = self._queue.delayed.publish([envelope], [shard], self._due)
            if isinstance(entered, AlreadyExists):
                return False
            if isinstance(entered, LatchworkError):
                raise entered
            return not self._is_late() or not self._queue.delayed.cancel(name)
        slot, pointers = self._slot, self._queue.pointers
        assert slot is not None  # noqa: S101 - its name has it
        self._slot = None
        (result,) = pointers.write([slot], [envelope])
        if isinstance(result, LatchworkError):
            raise result
        if result is not WriteResult.DONE:
            return False
        self._queue.active.loaded({slot.shard})
        if not self._is_late():
            return True
        # It was written too late. Unless somebody has it, or is done with it, it is dropped.
        drop = dropping(pointers.key(slot), name, self._me, pointers.now_ms(), int(pointers.sweep) + 1)
        (row,) = self._store.repeat_many([drop])
        if isinstance(row, NotFound | Refused):
            record = self._store.get(pointers.key(slot), TAKEN) if row.details.get("doubt") else None
            return record is None or record.bins.get(TAKEN) != self._me
        if isinstance(row, LatchworkError):
            raise row
        return False

    def _is_late(self) -> bool:
        """Whether a sweep may have passed the slot, or another publisher its seal, before the message was there."""
        return self._seams.boottime() - self._since > self._queue.pointers.sweep / 2

    def _ended(self, name: str) -> str:
        """Give up the slot that was reserved in vain, so that no consumer waits for it; return the name."""
        if self._slot is not None:
            self._queue.pointers.write_tombstones([self._slot])
            self._slot = None
        return name
