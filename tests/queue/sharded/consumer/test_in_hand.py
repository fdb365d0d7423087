"""What a process had in hand that was killed is settled by another one, at once: nobody waits for the sweep."""

# ruff: noqa: F811 - pytest gives a fixture by its name

from __future__ import annotations

import mmap

import pytest

from latchwork.errors import Unavailable
from latchwork.queue import BatchingConfig, Consumer
from latchwork.queue.sharded.consumer.in_hand import (
    ENTRIES,
    LEFT,
    SIZE,
    Hand,
    Noted,
    Notes,
    Stage,
    noted_in,
    settle_for,
)
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.subqueue import LATE, Ask
from latchwork.store.once import TOKEN
from latchwork.store.rows import Rows
from latchwork.testing import bring_back

from .test_interrupted import clock, handled, opened, store  # noqa: F401 - fixtures

WHY = "its process (child 2, pid 7) was killed by SIGKILL"


class Noting:
    """A consumer that notes what it has in hand, and what is noted when its handler is called the last time."""

    def __init__(self, queue, at_last, **options):
        self.memory = mmap.mmap(-1, SIZE)
        self.notes, self.left = Notes(self.memory), at_last
        self.seen = []
        self.consumer = Consumer(queue, self.handle, upkeep=False, **options)
        self.consumer.belong_to_worker(self.consumer._state.signals, self.consumer._state.life, self.notes.hand(0))
        self.consumer._turns.pace.size = 4

    def handle(self, deliveries):
        """Its process "dies" in its last call: others settle what it had, and it does nothing more that counts."""
        self.left -= 1
        if not self.left:
            self.seen = noted_in(self.memory)
            self.die()

    def die(self):
        pass


@pytest.mark.parametrize("of_group", [False, True])
def test_done_is_acknowledged_begun_fails_with_the_cause_and_the_rest_comes_back_uncounted(store, of_group):
    own, other = opened(store), opened(store)
    if of_group:
        own, other = own.group("g", start="oldest"), other.group("g", start="oldest")
    opened(store).publish_many(["done", "begun", "claimed", "claimed too"])
    dying = Noting(own, 2)
    told = []
    dying.die = lambda: told.append(settle_for(other, dying.seen, WHY, counts=True))
    dying.consumer._turns.take()
    dying.consumer._turns.take()
    stages = sorted(one.stage for one in dying.seen)
    assert stages == [Stage.CLAIMED, Stage.CLAIMED, Stage.BEGUN, Stage.DONE]
    assert told == [{"acknowledged": 1, "failed": 1, "given back": 0, "handed back": 2, "taken over": 0, LEFT: 0}]
    assert [row[:2] for row in handled(other)] == [("claimed", 1), ("claimed too", 1)]
    (waits,) = other.delayed.search()
    assert (waits.payload, waits.attempts, waits.reason, waits.last_error) == ("begun", 1, "swept", WHY)
    again = settle_for(other, dying.seen, WHY, counts=True)
    assert not any(again.values()), "what another has by now is not touched"


@pytest.mark.parametrize("taken_back", [False, True])
def test_of_a_process_that_drained_the_attempt_is_taken_back_once(store, taken_back):
    own, other = opened(store), opened(store)
    own.publish("m")
    (first,) = own.receive()
    first.nack()
    bring_back(own)
    dying = Noting(own, 1)

    def die():
        if taken_back:
            dying.consumer.runs.interrupting()
        settle_for(other, dying.seen, WHY, counts=taken_back)

    dying.die = die
    dying.consumer._turns.take()
    (back,) = other.receive()
    assert (back.attempts, back.reason, back.held.envelope.interrupts) == (2, "interrupted", 1)


def test_a_message_that_a_sweep_has_given_to_another_meanwhile_is_not_touched(store):
    own, other = opened(store), opened(store)
    opened(store).publish_many(["done", "begun", "claimed"])
    dying, told = Noting(own, 2), []

    def die():
        other.pointers.stamp([Slot(one.shard, one.pointer) for one in dying.seen], "another")
        told.append(settle_for(other, dying.seen, WHY, counts=True))

    dying.die = die
    dying.consumer._turns.take()
    dying.consumer._turns.take()
    assert not any(told[0].values())
    assert not other.delayed.search(), "no copy of it is left anywhere"
    assert len(other.pointers.held_by([Slot(one.shard, one.pointer) for one in dying.seen], ["another"] * 3)) == 3


class Killed(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("call", ["claim", "stamp"])
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("of_group", [False, True])
def test_what_was_just_being_claimed_is_handled_at_once_in_its_first_attempt(
    store, monkeypatch, call, landed, of_group
):
    own, other = opened(store), opened(store)
    if of_group:
        own, other = own.group("g", start="oldest"), other.group("g", start="oldest")
    opened(store).publish_many(range(6))
    dying, sent = Noting(own, 1), getattr(own.pointers, call)

    def killed(*given, **named):
        if landed:
            sent(*given, **named)
        dying.seen = noted_in(dying.memory)
        raise Killed

    monkeypatch.setattr(own.pointers, call, killed)
    with pytest.raises(Killed):
        dying.consumer._turns.take()
    assert [one.stage for one in dying.seen] == [Stage.ASKED]
    assert noted_in(dying.memory) == [], "a claim that has failed is not noted any more"
    told = settle_for(other, dying.seen, WHY, counts=True)
    assert told["taken over"] == 4
    assert sorted(row[:2] for row in handled(other)) == [(n, 1) for n in range(6)]
    assert other.depth().expired == 0


def test_a_claim_is_repeated_by_its_own_token_though_that_ends_with_zeros(store, clock, monkeypatch):
    own, other = opened(store), opened(store)
    opened(store).publish_many(range(6))
    dying, sent = Noting(own, 1), own.pointers.claim
    token = own.pointers.new_token(0)[:-2] + bytes(2)
    monkeypatch.setattr(own.pointers, "new_token", lambda shard: token)

    def killed(*given, **named):
        sent(*given, **named)
        dying.seen = noted_in(dying.memory)
        raise Killed

    monkeypatch.setattr(own.pointers, "claim", killed)
    with pytest.raises(Killed):
        dying.consumer._turns.take()
    settle_for(other, dying.seen, WHY, counts=True)
    assert sorted(row[:2] for row in handled(other)) == [(n, 1) for n in range(6)]


@pytest.mark.parametrize("away", ["held_by", "remove", "claim"])
def test_what_cannot_be_settled_as_the_store_is_away_is_said_to_be_left_to_the_sweep(store, monkeypatch, away):
    own, other = opened(store), opened(store)
    opened(store).publish_many(range(4))
    dying = Noting(own, 1)
    dying.consumer._turns.take()
    seen = dying.seen
    if away == "claim":
        seen = [Noted(0, Stage.ASKED, 0, 4, "me", own.pointers.new_token(0).hex())]
        monkeypatch.setattr(other.pointers, away, lambda *given, **named: _raise(Unavailable("away")))
    else:
        monkeypatch.setattr(other.pointers, away, lambda held, *_, **__: Rows([Unavailable("away")] * len(held)))
    told = settle_for(other, seen, WHY, counts=True)
    assert told == {**dict.fromkeys(told, 0), LEFT: 4}


def _raise(failure):
    raise failure


def test_a_slot_that_was_claimed_before_it_was_written_is_waited_for_by_the_other(store):
    own, other = opened(store), opened(store)
    dying = Noting(own, 1)
    number = own.pointers.reserve({0: 1})[0]
    dying.die = lambda: None
    own.active.loaded({0})
    dying.consumer._turns.queue.await_messages = lambda *given, **named: own._round(
        4, Ask(notes=named["notes"]), now=True
    )
    dying.consumer._turns.take()
    seen = noted_in(dying.memory)
    assert [(one.stage, one.pointer) for one in seen] == [(Stage.AWAITED, number)]
    assert settle_for(other, seen, WHY, counts=True)["taken over"] == 1
    other.pointers.write([Slot(0, number)], [Envelope('"late"', "late")])
    assert [row[:2] for row in handled(other)] == [("late", 1)]


@pytest.mark.parametrize("by", ["the next look", "the supervisor"])
def test_a_slot_is_noted_for_as_long_as_its_message_is_waited_for(store, clock, by):
    queue = opened(store)
    waits = Noting(queue, 1)
    queue.pointers.reserve({0: 2})
    queue.active.loaded({0})
    waits.consumer._turns.queue.await_messages = lambda *given, **named: queue._round(
        4, Ask(notes=named["notes"]), now=True
    )
    for _ in range(2):
        waits.consumer._turns.take()
        assert [one.stage for one in noted_in(waits.memory)] == [Stage.AWAITED] * 2
    clock.advance(LATE + 1)
    if by == "the next look":
        waits.consumer._turns.take()
    else:
        waits.consumer._give_up_late()
    assert noted_in(waits.memory) == []


def test_nothing_stays_noted_once_it_is_settled_and_more_than_fits_is_left_to_the_sweep(store):
    queue = opened(store, batching=BatchingConfig(10, 1))
    queue.publish_many(range(6))
    dying = Noting(queue, 1)
    del dying.notes.free[: ENTRIES - 5]  # one is the claim's, while it is made
    dying.consumer._turns.take()
    assert [one.stage for one in dying.seen] == [Stage.BEGUN] * 4
    assert noted_in(dying.memory) == []
    assert len(dying.notes.free) == 5


@pytest.mark.parametrize("at", ["the next turn", "the end"])
def test_what_a_sweep_took_while_the_process_was_paused_does_not_stay_noted(store, clock, at):
    queue = opened(store)
    queue.publish_many(range(4))

    def paused():
        clock.advance(queue.pointers.sweep + 1)
        for one in dying.consumer._prefetched.waiting:
            queue.pointers.stamp([one.delivery.held.slot], "a sweep")

    dying = Noting(queue, 1)
    dying.die = paused
    dying.consumer._turns.take()
    assert len(dying.seen) == 4
    if at == "the end":
        dying.consumer._prefetched.hand_back()
    dying.consumer._turns.take()
    dying.consumer._settlements.send()
    assert noted_in(dying.memory) == []


def test_a_consumer_that_no_parent_watches_notes_nothing(store):
    assert type(Consumer(opened(store), print, upkeep=False)._state.hand) is Hand


@pytest.mark.parametrize("more", [0, 1])
def test_a_claim_is_noted_with_its_whole_token_or_not_at_all(more):
    memory, token = mmap.mmap(-1, SIZE), bytes(range(TOKEN))
    me = "m" * (128 - TOKEN + more)
    place = Notes(memory).put(3, Stage.ASKED, Slot(1, 7), me, token)
    assert (place is None) is bool(more)
    assert noted_in(memory) == ([] if more else [Noted(3, Stage.ASKED, 1, 7, me, token.hex())])
