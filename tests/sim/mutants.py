"""Rules taken out, one at a time: each mutant is a protocol without one of its guards.

A mutant is a context manager that patches the code for as long as it lasts. Whoever adds a rule adds its mutant here,
and the search finds the first seed under which the checkers catch it: a checker that catches nothing proves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest import mock

from msgspec import structs

from latchwork.coord import contender, lease
from latchwork.coord import fencing as fenced
from latchwork.coord.latch import latch as latches
from latchwork.coord.latch import layout as latch_layout
from latchwork.coord.latch import watch as latch_watch
from latchwork.errors import NotFound, OutcomeUnknown, Refused
from latchwork.queue.circular import buffer as circular_slots
from latchwork.queue.circular import layout as circular_layout
from latchwork.queue.circular import lock as circular_lock
from latchwork.queue.circular import plan as circular_plan
from latchwork.queue.circular import queue as circular
from latchwork.queue.sharded import active, bell
from latchwork.queue.sharded import redrive as passes
from latchwork.queue.sharded import shards as pointers
from latchwork.queue.sharded import subqueue as view
from latchwork.queue.sharded import transfer as loading
from latchwork.queue.sharded.ledger import chunks as ledger_chunk
from latchwork.queue.sharded.ledger import writer as ledger_writer
from latchwork.queue.sharded.ledger.chunks import LedgerRecords
from latchwork.queue.sharded.upkeep import sweep as sweeping
from latchwork.queue.sharded.upkeep import sweeper
from latchwork.retry import RetryPolicy
from latchwork.store import NEVER, Exists, once
from latchwork.store.aerospike import batch as batch_rows
from latchwork.store.model.expr import (
    SERVER_NOW,
    SINCE_UPDATE,
    Bin,
    Bound,
    Const,
    If,
    MapKeyAt,
    MapSize,
    Param,
    exists,
    lacks,
    missing,
    unbound,
)
from latchwork.store.model.form import plain
from latchwork.store.model.ops import MapPut, Put

from .across_mutants import ACROSS_RULES
from .batch_mutants import BATCH_RULES
from .coord_mutants import BARRIER_RULES, LIMITER_RULES, POLLER_RULES, PRESENCE_RULES, RWLOCK_RULES, SEMAPHORE_RULES
from .effect_mutants import EFFECT_RULES
from .message_mutants import MESSAGE_RULES
from .queue_mutants import CONSUMER_RULES, GROUP_RULES, ONE_RULES, ORDERED_RULES, PUBLISHER_RULES
from .rate_mutants import RATE_RULES
from .result_mutants import RESULT_RULES
from .retry_mutants import RETRY_RULES
from .unique_mutants import UNIQUE_RULES
from .upkeep_mutants import UPKEEP_RULES
from .write_mutants import WRITE_RULES

TRUE = Const(True)
SWEEP = 4.0
"""Seconds of the sweep duration in the simulations."""


@dataclass(frozen=True)
class Mutant:
    """A rule that is taken out: which primitive, what is wrong then, which rule it was, and how."""

    primitive: str
    name: str
    rule: str
    taken_out: Callable[[], Any]
    scripted: bool = False
    """Too rare for chance: a script in `test_counterexamples.py`, or a test beside those of the work, shows it."""
    first: int = 0
    """The seed to begin a search with, for one that is rare."""

    @property
    def id(self) -> str:
        """The primitive and the name, which no other mutant has both."""
        return f"{self.primitive}: {self.name}"

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Take the rule out for a while: also of all that Latchwork makes once and keeps, which must not outlast it."""
        _forget()
        try:
            with self.taken_out():
                yield
        finally:
            _forget()


def _forget() -> None:
    """Empty every cache of the library's functions."""
    for module in [module for name, module in sys.modules.items() if name.startswith("latchwork.")]:
        for kept in [value for value in vars(module).values() if hasattr(value, "cache_clear")]:
            kept.cache_clear()


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


# ---- the record store: once (P1)


def _guarded(guard: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """Attempts with another guard for their token, and a put that overwrites."""

    def attempt(self: Any, real: Any = once._Attempt._attempt) -> Any:
        update = plain(real(self))
        ops = tuple(MapPut(op.bin, op.key, op.value) if isinstance(op, MapPut) else op for op in update.ops)
        when, params = unbound(self.update.when)
        fresh = guard(self.once, when)
        return structs.replace(update, ops=ops, when=fresh and Bound(fresh, {**params, "token": self.token}))

    return _swap(once._Attempt, "_attempt", attempt)


TOKEN = Param("token", bytes)


def _and(fresh: Any, when: Any) -> Any:
    return fresh if when is None else fresh & when


def _no_token(memory: Any, when: Any) -> Any:
    return when


def _no_window(memory: Any, when: Any) -> Any:
    return _and(lacks(memory.bin, TOKEN), when)


def _window_only(memory: Any, when: Any) -> Any:
    older = MapKeyAt(memory.bin, 0, bytes) < TOKEN
    return _and(missing(memory.bin) | (MapSize(memory.bin) < memory.capacity) | older, when)


def _refused_without_cancelling(self: Any) -> Any:
    raise self._refused()


def _absent_means_done(self: Any) -> Any:
    return (None,)


def _minted_below_the_retry(self: Any, send: Any = once._Attempt._send) -> Any:
    policy, store = self.store.policy, self.store
    self.store = store.with_policy(RetryPolicy(attempts=1))
    for _ in range(policy.attempts):
        try:
            return send(self)
        except OutcomeUnknown:
            self.token = store.token_clock.mint(store.seams, self.update.key)
    raise OutcomeUnknown


STORE = (
    Mutant("store", "retry of an in-doubt add", "P1: not has(t)", _guarded(_no_token)),
    Mutant("store", "token checked, window not", "P1: smallest key < t", _guarded(_no_window)),
    Mutant("store", "window checked, token not", "P1: not has(t)", _guarded(_window_only)),
    Mutant("store", "token minted below the retry", "P1: minted above the retry",
           _swap(once._Attempt, "_send", _minted_below_the_retry)),
    Mutant("store", "refused after doubt without cancelling", "P0.6",
           _swap(once._Attempt, "_cancel", _refused_without_cancelling)),
    Mutant("store", "absent after doubt means done", "P0.6", _swap(once._Attempt, "_cancel", _absent_means_done)),
)  # fmt: skip


# ---- latches (P8)


def _bins(**changes: Any) -> Callable[[], Any]:
    """The latch's bins with other guards in them."""

    def bins_of(farm: str, real: Any = latch_layout.bins_of) -> Any:
        bins = real(farm)
        return replace(bins, **{name: make(bins) for name, make in changes.items()})

    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as patches:
            for module in (latches, latch_layout):
                patches.enter_context(mock.patch.object(module, "bins_of", bins_of))
            yield

    return patch


def _any_party(farm: str, by_java: bool, kind: type) -> Any:
    bins = latch_layout.bins_of(farm)
    return bins.made_by_java if by_java else bins.is_mine


def _any_kind(farm: str, by_java: bool, kind: type) -> Any:
    return _any_party(farm, by_java, kind) & lacks(latch_layout.bins_of(farm).done, Param("party", str))


def _gone_reads_as_released(self: Any, ids: Any, found: Any, real: Any = latches.Latch._progress) -> Any:
    try:
        return real(self, ids, found)
    except NotFound:
        return latches.LatchProgress({}, 0)


def _without_names(self: Any, *args: Any, real: Any = latches.Latch._count_party) -> Any:
    self._identity()
    self._names = None
    return real(self, *args)


@contextmanager
def _reads_of_any_latch() -> Iterator[None]:
    def checked(self: Any, record: Any) -> Any:
        if record is None:
            raise self._gone()
        return record

    def progress(self: Any, ids: Any, found: Any, real: Any = latches.Latch._progress) -> Any:
        return real(self, {}, found)

    with (
        mock.patch.object(latches.Latch, "_checked", checked),
        mock.patch.object(latches.Latch, "_progress", progress),
    ):
        yield


LATCH = (
    Mutant("latch", "retry of an in-doubt count", "P1", _guarded(_no_token)),
    Mutant("latch", "a party counts every time", "P8: not has(done, party)",
           _swap(latch_layout, "not_counted", lru_cache(_any_party))),
    Mutant("latch", "counts ignore which latch they mean", "P8: id = nonce",
           _bins(is_mine=lambda bins: exists(bins.count))),
    Mutant("latch", "what has expired reads as released", "P8: absent is NOT_FOUND",
           _swap(latches.Latch, "_progress", _gone_reads_as_released)),
    Mutant("latch", "reads ignore which latch they mean", "P8: reads compare the nonce", _reads_of_any_latch),
    Mutant("latch", "a party that was not named counts", "P8: only the parties that were named count",
           _swap(latches.Latch, "_count_party", _without_names)),
    Mutant("latch", "text and whole numbers count in one farm", "P8: parties of one kind in a farm",
           _swap(latch_layout, "not_counted", lru_cache(_any_kind)), scripted=True),
    Mutant("latch", "who joins says how long the latch lives", "P8: who joins keeps the time that is left",
           _swap(latches, "checked_ttl", lambda ttl: ttl or 5), scripted=True),
    Mutant("latch", "counts of Java stand for a farm's share", "P8: below zero and without a nonce is no share",
           _swap(latch_watch, "has_joined", lambda bins, farm: latch_layout.COUNT + farm in bins), scripted=True),
    Mutant("latch", "released without every farm's share", "P8: every farm in farms has its bin",
           _swap(latches.LatchProgress, "released", property(lambda self: self.remaining <= 0))),
    Mutant("latch", "create overwrites", "P8: not exists(count#farm)", _bins(is_free=lambda bins: TRUE)),
    Mutant("latch", "counts below zero", "a DC latch never goes below zero",
           _bins(floored=lambda bins: Bin(bins.count) - Param("n"))),
)  # fmt: skip


# ---- locks (P2)


def _released_by(guard: Callable[[Any], Bound]) -> Callable[[], Any]:
    """A release with another guard."""

    def release(self: Any, fence: int) -> bool:
        try:
            self.store.operate(self.key, *lease.RELEASE, when=guard(self), ttl=NEVER, repeatable=True)
        except (Refused, NotFound):
            return False
        return True

    return _swap(contender.Contender, "release", release)


LOCKED = Bin(lease.LOCKED).eq(1)
OWN = LOCKED & Bin(lease.OWNER, str).eq(Param("owner", str))


_EXPIRED = lease._UNCHANGED & (SERVER_NOW - Bin(lease.TIME) > Bin(lease.LEASE))


def _broken_by(guard: Any) -> Callable[[], Any]:
    return _swap(lease, "_BROKEN", guard & lease._NOT_MINE)


LOCK_RULES = (
    ("owner-only release", "P2: release guarded by the fence", _released_by(lambda self: OWN.bind(owner=self.owner))),
    ("release by any party", "P2: release guarded by the fence", _released_by(lambda self: LOCKED.bind())),
    ("broken before it was seen to stand still", "P2: seen standing still for a lease",
     _swap(contender.Contender, "may_break", lambda self, seen: True)),
    ("broken though it was renewed", "P2: fence, renewals and time in the guard",
     _broken_by(lease._HELD), True),
    ("only what expired by the server's clock is broken", "P2: no guard compares a time", _broken_by(_EXPIRED)),
    ("broken by the challenger's lease", "P2: the holder's lease from the record",
     _swap(lease.Observation, "ran_out", lambda self, now: now - self.since > 0.3)),
    ("expiry by the record's last update", "P2: other bins of the record may be written",
     _broken_by(lease._UNCHANGED & (Bin(lease.LEASE) < SINCE_UPDATE))),
    ("the next fence is one more", "P2: max(fencing-ctr + 1, server time)",
     _swap(lease, "NEXT_FENCE", If(exists(lease.FENCE), Bin(lease.FENCE) + 1, Const(1)))),
    ("renewing needs no fence", "P2: renew guarded by the fence",
     _swap(lease, "held", lambda fence: LOCKED.bind())),
    ("belief without end", "P2: start of the first attempt + lease - drift",
     _swap(lease, "believed_until", lambda began, lease: began + 1e9)),
)  # fmt: skip
RESOURCE_RULES = (
    ("a guard without the ratchet", "P2: guards bin <= f and stores bin = f",
     _swap(fenced, "Put", lambda bin, fence: Put("another", fence))),
    ("a ratchet without the guard", "P2: guards bin <= f and stores bin = f",
     _swap(fenced, "_fenced", lambda bin, when: TRUE if when is None else when)),
)  # fmt: skip
LOCK = tuple(Mutant("lock", *rule) for rule in (*LOCK_RULES, *RESOURCE_RULES))


# ---- the large circular queue (P4)


def _head_together_with_tail(self: Any, hold: Any, head: int) -> bool:
    """Head is not moved on before the slots are overwritten."""
    return True


@contextmanager
def _groups_do_not_hold_head() -> Iterator[None]:
    take = circular_lock.QueueLock.take

    def blind(self: Any, *args: Any, **rest: Any) -> Any:
        return structs.replace(take(self, *args, **rest), watermark=circular_layout.UNLIMITED)

    guard = _swap(circular_lock.QueueLock, "_guard", lambda self, hold, head: lease.held(hold.fence))
    with mock.patch.object(circular_lock.QueueLock, "take", blind), guard():
        yield


def _unlocked_answer(self: Any, txn: str, began: int, timeout: Any) -> list[int]:
    return [0, -1, 0]


def _judged_at_once(self: Any, hold: Any, txn: Any, *, real: Any = circular_lock.QueueLock.settled) -> Any:
    """A commit whose entry is not there yet counts as not made, while its hold goes on."""
    return real(self, hold, txn) if self.store.get(self.layout.meta).bins["txns"].get(txn) else False


def _any_entry(slot: Any, offset: int) -> Any:
    return circular_slots.Entry(offset, slot[1] if slot else None)


CIRCULAR_RULES = (
    ("no fence on the commit", "P4: commit guarded by locked = 1 and fencing-ctr = f",
     _swap(circular_lock.QueueLock, "_guard", lambda self, hold, head: LOCKED.bind())),
    ("no fence on the slots", "P4: slots guarded by fencing-mark <= f",
     _swap(circular_slots, "not_stale", lambda fence: exists(circular_layout.MARK).bind())),
    ("readers do not check the offset", "P4: every reader checks the offset",
     _swap(circular_slots, "entry_of", _any_entry)),
    ("slots are overwritten before head moves on", "P4: overwrite commits the new head first",
     _swap(circular_plan.Planner, "_move_head", _head_together_with_tail)),
    ("a commit in doubt counts as not made", "P4: transaction map",
     _swap(circular_lock.QueueLock, "settled", lambda self, hold, txn: False)),
    ("a commit in doubt counts as made", "P4: transaction map",
     _swap(circular_lock.QueueLock, "settled", lambda self, hold, txn: True)),
    ("a commit in doubt is judged before its hold is ended", "P4: take a new fence, then say it",
     _swap(circular_lock.QueueLock, "settled", _judged_at_once)),
    ("head does not wait for groups", "P4: smallest waited-for group position >= new head", _groups_do_not_hold_head),
    ("not committed is said without a new fence", "P4: take a new fence, then say it",
     _swap(circular.LargeQueue, "_decided", _unlocked_answer), True),
    ("broken before it was seen to stand still", "P2: seen standing still for a lease",
     _swap(lease.Observation, "ran_out", lambda self, now: True)),
    ("only what expired by the server's clock is broken", "P2: no guard compares a time", _broken_by(_EXPIRED)),
)  # fmt: skip
CIRCULAR = tuple(Mutant("circular", *rule) for rule in CIRCULAR_RULES)


# ---- the sharded queue, its sweeper and its shovel (P5)


def _deleted_first(held: Any, target: Any, envelopes: Any, remove: Any) -> Any:
    removed = remove(held)
    target(held, envelopes)
    return removed


def _deleted_anyway(held: Any, target: Any, envelopes: Any, remove: Any) -> Any:
    target(held, envelopes)
    return remove(held)


@contextmanager
def _moved_by(move: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for module in (loading, sweeping, view, passes):
            stack.enter_context(mock.patch.object(module, "move", move))
        yield


def _written(accept: Callable[[Any], bool]) -> Callable[[], Any]:
    """Writes whose other outcomes count as done as well."""

    def write(self: Any, *args: Any, real: Any = pointers.Shards.write, **rest: Any) -> Any:
        return [pointers.WriteResult.DONE if accept(outcome) else outcome for outcome in real(self, *args, **rest)]

    return _swap(pointers.Shards, "write", write)


def _passing_everything(self: Any, *args: Any, real: Any = sweeper.Sweeper._plan) -> Any:
    task = real(self, *args)
    return replace(task, limit=args[1].fired, settled_up_to=args[1].fired)


def _marks_aged_by_the_server(self: Any, *args: Any, real: Any = sweeper.Sweeper._plan) -> Any:
    _, at, _, mark, _ = args
    self._known = lambda *_: (at.now - mark[1]) / 1000
    try:
        return real(self, *args)
    finally:
        del self._known


def _never_late(self: Any, *args: Any, real: Any = pointers.Shards.__init__, **rest: Any) -> None:
    real(self, *args, **rest)
    self.sweep = 1e9


def _deaf_to_what_came_between(self: Any, real: Any = active.ActiveShards._glance) -> None:
    real(self)
    self._rings_seen = self._queue.bell.rings()


def _any_epoch() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(sweeping, "_forward", return_value=TRUE))
    stack.enter_context(mock.patch.object(sweeper, "EPOCH_GUARD", TRUE))
    return stack


def _hands(**changes: Any) -> Callable[[], Any]:
    return _swap(pointers.Shards, "stamp_rules", replace(pointers.Shards.stamp_rules, **changes))


def _settled_at_fire(self: Any) -> list[int]:
    return [state.fired for state in self.states()]


def _nothing_begins_again(*_: object) -> None: ...


def _lost_unnoticed() -> Any:
    """A queue whose record was lost, or whose pointers were, as it was before there were rules for that."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(pointers.Shards, "settled", _settled_at_fire))
    stack.enter_context(mock.patch.object(sweeper, "begin_again", _nothing_begins_again))
    return stack


SHARDED_RULES = (
    ("acknowledging without a guard", "P5: delete guarded delivery = mine", _swap(pointers, "_ALONE", exists("data"))),
    ("deleted before it is loaded", "P5: load, then delete", lambda: _moved_by(_deleted_first)),
    ("deleted although it was not loaded", "P5: a failed load leaves the record", lambda: _moved_by(_deleted_anyway)),
    ("the sweep passes empty slots at once", "P5: passed only below the FIRE of a sweep duration ago",
     _swap(sweeper.Sweeper, "_plan", _passing_everything)),
    ("sweep pointers ignore the epoch", "P5: guarded by epoch <= mine and by not going backwards", _any_epoch),
    ("a late create is acknowledged", "P5: later than sweep_duration / 2 is spent",
     _swap(pointers.Shards, "__init__", _never_late)),
    ("a spent slot counts as written", "P5: EXISTS with another msgId is spent",
     _written(lambda outcome: outcome is pointers.WriteResult.SPENT)),
    ("a write in doubt counts as done", "P5: acknowledged only when created",
     _written(lambda outcome: isinstance(outcome, OutcomeUnknown))),
    ("the sweep takes what a consumer holds", "P5: since-update exceeds the duration",
     _hands(abandoned=exists("data") & exists("delivery"))),
    ("only what the server's clock says is abandoned", "P5: or left alone for a duration by the leader's clock",
     _swap(sweeper.Sweeper, "_abandoned", lambda self, *args: frozenset())),
    ("what was left alone is taken as it is now", "P5: guarded by the delivery and its stamp as they were seen",
     _hands(left_alone=exists("data")), True),
    ("marks grow old by the server's clock", "P5: by the leader's own",
     _swap(sweeper.Sweeper, "_plan", _marks_aged_by_the_server)),
    ("the bell is read after the pointers", "P5: before the pointers",
     _swap(active.ActiveShards, "_glance", _deaf_to_what_came_between), True),
    ("a shard that was empty is not rung for", "P5: rung where the shard was empty",
     _swap(bell.Bell, "ring_later", lambda self: None), True),
    ("what was lost with the store is not noticed", "P5: a lost shard is swept from its beginning", _lost_unnoticed),
    ("a queue made again is swept from FIRE", "P5: what is not certain to have expired is swept again",
     _swap(pointers.Shards, "settled", _settled_at_fire), True),
    ("lost pointers are not noticed", "P5: a shard that was lost begins again",
     _swap(sweeper, "begin_again", _nothing_begins_again), True),
)  # fmt: skip
SHARDED = tuple(Mutant("sharded", *rule) for rule in (*SHARDED_RULES, *ONE_RULES))
ORDERED = tuple(Mutant("ordered", *rule) for rule in ORDERED_RULES)
CONSUMER = tuple(Mutant("consumer", *rule) for rule in CONSUMER_RULES)
RETRY = tuple(Mutant("retry", *rule) for rule in RETRY_RULES)
MESSAGE = tuple(Mutant("message", *rule) for rule in MESSAGE_RULES)
RESULTS = tuple(Mutant("results", *rule) for rule in RESULT_RULES)
UNIQUE = tuple(Mutant("unique", *rule) for rule in UNIQUE_RULES)
RATE = tuple(Mutant("rate", *rule) for rule in RATE_RULES)
GROUPS = tuple(Mutant("groups", *rule) for rule in GROUP_RULES)
ENDING = tuple(Mutant("batches", *rule) for rule in BATCH_RULES)
PUBLISHER = tuple(Mutant("publisher", *rule) for rule in PUBLISHER_RULES)
UPKEEP = tuple(Mutant("upkeep", *rule) for rule in UPKEEP_RULES)


# ---- publishing by a ledger (P6)


def _nothing_kept(self: Any, held: Any, real: Any = pointers.Shards.remove) -> Any:
    return real(self, [one._replace(envelope=structs.replace(one.envelope, keep_id=0)) for one in held])


def _always_changed(self: Any, number: int, msg_id: str, *slots: str, real: Any = LedgerRecords.change) -> bool:
    real(self, number, msg_id, *slots)
    return True


def _never_too_late(self: Any, *args: Any, real: Any = ledger_writer.ChunkWriter.__init__, **rest: Any) -> None:
    real(self, *args, **rest)
    self._late = float("inf")


def _found_in_time(self: Any, *args: Any, real: Any = LedgerRecords.chunk) -> Any:
    chunk = real(self, *args)
    return chunk and replace(chunk, born=float("inf"))


LEDGER_RULES = (
    ("nothing is kept of what was deleted", "P6: a delete keeps msgId",
     _swap(pointers.Shards, "remove", _nothing_kept)),
    ("the first attempt's ledger is overwritten", "P6: the ledger record is create-only",
     _swap(ledger_chunk, "Exists", mock.Mock(CREATE=Exists.ANY))),
    ("a slot is left before it is closed", "P6: a late slot is examined and closed first",
     _swap(ledger_writer.ChunkWriter, "_withdrawn", lambda self, slot, msg_id: True)),
    ("a slot that was filled late counts", "P6: a pointer found too late is swapped",
     _swap(ledger_writer.ChunkWriter, "__init__", _never_too_late)),
    ("what another attempt reserved counts as young", "P6: nobody else knows when it was reserved",
     _swap(LedgerRecords, "chunk", _found_in_time)),
    ("a swap that was refused counts as made", "P6: swapped, guarded by = p; refused: take the one found",
     _swap(LedgerRecords, "change", _always_changed), False, 2_990),
)  # fmt: skip
LEDGER = tuple(Mutant("ledger", *rule) for rule in LEDGER_RULES)
EFFECTS = tuple(Mutant("effects", *rule) for rule in EFFECT_RULES)
WRITES = tuple(Mutant("writes", *rule) for rule in WRITE_RULES)


# ---- elections (P3): the lock's rules, under the election's promises

ELECTION_RULES = (
    ("broken before it was seen to stand still", "P2: seen standing still for a lease",
     _swap(contender.Contender, "may_break", lambda self, *rest: True)),
    ("only what expired by the server's clock is broken", "P2: no guard compares a time", _broken_by(_EXPIRED)),
    ("the next epoch is one more", "P3: the epoch is the fence",
     _swap(lease, "NEXT_FENCE", If(exists(lease.FENCE), Bin(lease.FENCE) + 1, Const(1)))),
    ("belief without end", "P3: check compares the deadline",
     _swap(lease, "believed_until", lambda began, lease: began + 1e9)),
    ("renewing needs no epoch", "P2: renew guarded by the fence",
     _swap(lease, "held", lambda fence: LOCKED.bind())),
    ("a ratchet without the guard", "P2: guards bin <= f and stores bin = f",
     _swap(fenced, "_fenced", lambda bin, when: TRUE if when is None else when)),
    ("a leader that steps down is succeeded at once", "P3.7: succeeded after its whole lease",
     _swap(lease, "seize", lambda by, grant, *, at_once, real=lease.seize: real(by, grant, at_once=True))),
)  # fmt: skip
ELECTION = tuple(Mutant("election", *rule) for rule in ELECTION_RULES)

ACROSS = tuple(Mutant("across", *rule) for rule in ACROSS_RULES)
SEMAPHORE = tuple(Mutant("semaphore", *rule) for rule in SEMAPHORE_RULES)
PRESENCE = tuple(Mutant("presence", *rule) for rule in PRESENCE_RULES)
RWLOCK = tuple(Mutant("rwlock", *rule) for rule in RWLOCK_RULES)
POLLER = tuple(Mutant("poller", *rule) for rule in POLLER_RULES)
BARRIER = tuple(Mutant("barrier", *rule) for rule in BARRIER_RULES)
LIMITER = tuple(Mutant("limiter", *rule) for rule in LIMITER_RULES)


# ---- batches: what the client reports where it knows no node


def _own_result_ignored(row: Any, batch: int, *, sent: bool, real: Any = batch_rows._row_fault) -> Any:
    return real(row, batch, sent=sent) if row.result else None


BATCHES = tuple(
    Mutant(primitive, "a batch's own result is ignored", "F15: a row is done only where it was answered",
           _swap(batch_rows, "_row_fault", _own_result_ignored))
    for primitive in ("circular", "sharded", "ledger")
)  # fmt: skip

MUTANTS = (
    STORE + LATCH + LOCK + ELECTION + CIRCULAR + SHARDED + ORDERED + CONSUMER + RETRY + MESSAGE + RESULTS
    + UNIQUE + RATE + GROUPS + ENDING + PUBLISHER + UPKEEP + LEDGER + EFFECTS + WRITES + ACROSS + SEMAPHORE + RWLOCK
    + LIMITER + PRESENCE + POLLER + BARRIER + BATCHES
)  # fmt: skip
