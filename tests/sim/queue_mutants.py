"""Rules taken out of the queues, one at a time, as `mutants.py` lists them: order, one message, publisher, groups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest import mock

from msgspec import structs

from latchwork.coord.lock import Grant
from latchwork.errors import LatchworkError, OutcomeUnknown
from latchwork.queue.sharded import pointers, shards, sideline, subqueue
from latchwork.queue.sharded.consumer.consumer import Consumer
from latchwork.queue.sharded.consumer.ordering import ShardLocks
from latchwork.queue.sharded.consumer.prefetch import Prefetched
from latchwork.queue.sharded.consumer.runs import Runs
from latchwork.queue.sharded.consumer.settlements import Settlements
from latchwork.queue.sharded.groups import making
from latchwork.queue.sharded.groups import pointers as group_pointers
from latchwork.queue.sharded.groups import stamps as group_stamps
from latchwork.queue.sharded.groups.members import Members
from latchwork.queue.sharded.groups.stamps import SHARED, group_ack_of, stamp_rules_of
from latchwork.queue.sharded.pending import PendingSlots
from latchwork.queue.sharded.pointers import _IN_TURN as IN_TURN
from latchwork.queue.sharded.publishing.publication import Pending
from latchwork.queue.sharded.publishing.publisher import Publisher
from latchwork.queue.sharded.rules import GROUPS
from latchwork.queue.sharded.shards import Shards
from latchwork.queue.sharded.subqueue import Subqueue
from latchwork.queue.sharded.upkeep.sweeper import Sweeper
from latchwork.store import NEVER, Bin, Param, exists, has
from latchwork.store.model.expr import Const, MapValue
from latchwork.store.model.form import Form
from latchwork.store.rows import Rows


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _released_at_the_end(self: Any, shard: int, grant: Any) -> None:
    with suppress(LatchworkError):
        if self._forget(shard, grant):
            grant.release()


def _claimed_anew(self: Any, *args: Any, real: Any = Shards.claim, token: Any = None, **rest: Any) -> Any:
    return real(self, *args, **rest)


def _never_more(self: Any, shard: int, n: int, turn: Any = None, *, real: Any = Shards.claim, **rest: Any) -> Any:
    return real(self, shard, n, turn and turn._replace(more=False), **rest)


def _not_in_order(self: Any, claimed: Any, found: Any, ask: Any, *, real: Any = Subqueue._classify) -> Any:
    return real(self, claimed, found, replace(ask, shards=None))


def _always_given_back() -> Any:
    return mock.patch.object(Grant, "gives_back_late", property(lambda self: True, lambda *_: None), create=True)


UNSEALED = {more: Form(*form.ops, when=pointers._UNFIRED, ttl=NEVER, once=form.once) for more, form in IN_TURN.items()}


def _dropped_first(self: Any, found: Any, me: str, *, real: Any = sideline.SideView._take) -> Any:
    rows = real(self, found, me)
    self._drop(found, me, sideline._STILL_MINE, sideline._DROP_ALL)
    return rows


WHOEVER_HAS_IT = exists("data") & Bin("msgId", str).eq(Param("id", str))

ONE_RULES = (
    ("what somebody has received is discarded", "P5: only what nobody has received",
     _swap(sideline, "_MAY_TAKE", WHOEVER_HAS_IT), True),
    ("two bring a message back at once", "P5: one at a time", _swap(sideline, "_MAY_TAKE", sideline._WAITS), True),
    ("gone here before it is there", "P5: loaded there, then taken away here",
     _swap(sideline.SideView, "_take", _dropped_first), True),
)  # fmt: skip

ORDERED_RULES = (
    ("released while a message is on its way", "P5: a shard is given up with nothing unresolved",
     _swap(ShardLocks, "_end", _released_at_the_end)),
    ("a claim in doubt is forgotten", "P5: a claim in doubt is gone on with",
     _swap(PendingSlots, "put_doubt", lambda self, *args: None)),
    ("a claim in doubt is made with another token", "P5: with its own token", _swap(Shards, "claim", _claimed_anew)),
    ("nothing is taken over", "P5: what the last holder had in hand comes first",
     _swap(Subqueue, "take_over", lambda self, *args: None)),
    ("claims of a former holder count", "P5: sealed by the fence", _swap(pointers, "_IN_TURN", UNSEALED), True),
    ("only the newest claim is taken over", "P5: claimed together, in hand together",
     _swap(Shards, "claim", _never_more)),
    ("given back by a late renewal", "P5: only who is done releases", _always_given_back, True),
    ("what is behind a message on its way is given out", "P5: nothing behind it",
     _swap(Subqueue, "_classify", _not_in_order), True),
)  # fmt: skip


# ---- consumers that prefetch (P5)


def _acknowledged_first(self: Any, delivery: Any, *, real: Any = Runs.begin) -> Any:
    run = real(self, delivery)
    if run is not None:
        delivery.view.pointers.remove([delivery.held])
    return run


def _only_what_is_late(self: Any, waited: float = 0.0, *, real: Any = Prefetched.hand_back, **rest: Any) -> None:
    if waited:
        real(self, waited)


def _only_by_the_supervisor(self: Any, age: float = 0.0, *, real: Any = Settlements.send) -> None:
    if age:
        real(self, age)


def _gone_here_first(held: Any, target: Any, envelopes: Any, remove: Any) -> Any:
    removed = remove(held)
    target(held, envelopes)
    return removed


def _ends_by_a_defect(self: Any) -> None:
    failures = 0
    while not self._should_exit():
        try:
            self._turns.take()
        except LatchworkError as failure:
            failures += 1
            self._state.pause(failure, failures)


CONSUMER_RULES = (
    ("a defect ends its worker", "P5: a worker outlives whatever a step of it raises",
     _swap(Consumer, "_work", _ends_by_a_defect)),
    ("acknowledged before its handler has ended", "P5: acknowledged after its handler",
     _swap(Runs, "begin", _acknowledged_first)),
    ("what was not begun counts an attempt", "P5: create with attempts - 1",
     _swap(subqueue, "not_begun", lambda envelope: envelope)),
    ("nothing is handed back at a stop", "P5: all of it goes back at once where the consumer stops",
     _swap(Prefetched, "hand_back", _only_what_is_late)),
    ("a stop forgets what is done", "P5: acknowledged before a stop hands anything back",
     _swap(Settlements, "send", _only_by_the_supervisor)),
    ("gone before it is handed back", "P5: create, then delete", _swap(subqueue, "move", _gone_here_first)),
)  # fmt: skip


# ---- a publisher (P5)


def _forgets(self: Any, *, real: Any = Publisher._unanswered) -> Any:
    return real(self)[:1]


def _known_before_the_answer(self: Any, group: Any, *, real: Any = Publisher._stored) -> Any:
    for pending in group:
        message = pending.message
        pending.resolve(message.envelope.msg_id)
        pending.call_back()
        pending.message = message
    return real(self, group)


def _again(self: Any, group: Any, *, real: Any = Publisher._stored) -> Any:
    outcomes = real(self, group)
    return real(self, group) if any(isinstance(one, LatchworkError) for one in outcomes) else outcomes


def _all_well(self: Any, outcome: Any, *, real: Any = Pending.resolve) -> None:
    real(self, self.publication.message_id if isinstance(outcome, OutcomeUnknown) else outcome)


def _all_failed(self: Any, group: Any, *, real: Any = Publisher._stored) -> Any:
    outcomes = real(self, group)
    failed = [one for one in outcomes if isinstance(one, LatchworkError)]
    return Rows([failed[0]] * len(group)) if failed else outcomes


def _unbounded(self: Any, one: Any, *, real: Any = Publisher._entered) -> Any:
    self._most = 10**9
    return real(self, one)


def _forgets_who_came_late(self: Any, terms: Any, some: Any) -> Any:
    del self._waiting[terms]
    self._sending = [some.popleft()]
    self._left_by(list(some))
    return self._sending


PUBLISHER_RULES = (
    ("a flush that forgets", "P5: a flush waits for all that was published before",
     _swap(Publisher, "_unanswered", _forgets)),
    ("known before the store has answered", "P5: done only when the store has answered",
     _swap(Publisher, "_stored", _known_before_the_answer)),
    ("a group that failed is published again", "P5: a group is stored once", _swap(Publisher, "_stored", _again)),
    ("what is in doubt counts as published", "P5: unknown stays unknown", _swap(Pending, "resolve", _all_well)),
    ("one error is that of the whole group", "P5: each message has its own outcome",
     _swap(Publisher, "_stored", _all_failed)),
    ("as much waits as is published", "P5: no more waits than may", _swap(Publisher, "_entered", _unbounded)),
    ("what waits behind the first is dropped", "P5: every future ends",
     _swap(Publisher, "_taken", _forgets_who_came_late)),
)  # fmt: skip


# ---- groups (P17)


def _hands(**changes: Callable[[str], Any]) -> Callable[[], Any]:
    """The hands of every group, with some of their expressions made otherwise."""

    def changed(tag: str) -> Any:
        return replace(stamp_rules_of(tag), **{name: made(tag) for name, made in changes.items()})

    return _swap(group_pointers, "stamp_rules_of", lru_cache(changed))


def _without_the_last(self: Any, slots: Any, *, real: Any = Members.waiting) -> Any:
    return Rows(tags[:-1] for tags in real(self, slots))


def _by_anybody(tag: str) -> Form:
    return Form(*group_ack_of(tag).ops, when=has(GROUPS, tag))


def _all_are_alone(self: Any, held: Any, *, real: Any = Shards.remove) -> Any:
    return real(self, [h._replace(envelope=structs.replace(h.envelope, groups=None)) for h in held])


def _deleted_by_its_own() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(Shards, "remove", _all_are_alone))
    stack.enter_context(mock.patch.object(Members, "settle", lambda self, held: Rows([False] * len(held))))
    stack.enter_context(mock.patch.object(shards, "_ALONE", shards.QUEUE_STAMP_RULES.mine))
    return stack


def _deleted_by_the_first() -> Any:
    stack = ExitStack()
    for guard in ("_IS_LONG_ENOUGH", "_NOTHING_LEFT"):
        stack.enter_context(mock.patch.object(group_stamps, guard, exists("msgId")))
    stack.enter_context(mock.patch.object(group_stamps, "_none_wait", return_value=True))
    return stack


def _unmade_too(self: Any, queue: Any, bins: Any, *, real: Any = Sweeper.tasks) -> Any:
    return real(self, queue, {making.MADE: 1, **bins})


GROUP_RULES = (
    ("a group that has joined is not named", "P17: the reservation reads groups in the same step",
     _swap(Members, "waiting", _without_the_last)),
    ("whoever acknowledges ends it", "P17: guard groups[tag] = mine",
     _swap(group_pointers, "group_ack_of", lru_cache(_by_anybody))),
    ("the queue's own acknowledgement deletes", "P17: a delete whose guard says that there is no groups",
     _deleted_by_its_own),
    ("the first acknowledgement deletes", "P17: the last one deletes", _deleted_by_the_first),
    ("the sweep takes what a consumer holds", "P17: groupStamp by the server's clock",
     _hands(abandoned=lambda tag: has(GROUPS, tag) & MapValue(GROUPS, Const(tag), str).ne(""))),
    ("what was acknowledged is taken again", "P17: not acked[tag]",
     _hands(
         not_mine=lambda tag: exists("data") | exists(SHARED), untaken=lambda tag: exists("data") | exists(SHARED)
     )),
    ("swept from before it was made", "P17: sharedSweep = first", _swap(Sweeper, "tasks", _unmade_too)),
    ("a repeated drop looks at its own only", "P17: also those that no longer name the group",
     _swap(making, "_may_be_done", lambda row: row == (0,)), True),
)  # fmt: skip
