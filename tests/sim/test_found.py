"""What the simulations have found, each as a script: bugs that were mended, and limits that are now documented."""

from __future__ import annotations

from contextlib import suppress

import pytest

from latchwork.coord.latch.latch import CountDownLatch, CountUpDownLatch
from latchwork.coord.lock import LOCKS, FencedLock
from latchwork.errors import LeaseLost, OutcomeUnknown, Refused
from latchwork.queue import State, Sweeper
from latchwork.queue.circular.queue import LargeQueue
from latchwork.retry import RetryPolicy
from latchwork.store import Bin, Exists, Key, Once, Put

from .campaign import random_mixes
from .faults.kinds import Fault, Kind
from .faults.plans import SinglePlan
from .runner import simulate
from .scripts.interrupted import queue_on as retrying_queue_on
from .scripts.sharded import queue_on
from .stage import Stage
from .workload import SCENARIOS
from .workload.sharded import Office, Term

KEY = Key("sim", "record")
N = Bin("n")


def unanswered(first, last=40):
    """These calls of a process get no answer."""
    return {call: Fault(Kind.DROPPED) for call in range(first, last)}


def test_a_create_in_doubt_whose_outcome_cannot_be_read_is_unknown():
    """It was `Unavailable`, which says that nothing was written, though the latch was there."""
    stage = Stage({"a": {1: Fault(Kind.REPLY_LOST), **unanswered(3)}})
    stage.act("a", lambda store: CountDownLatch.create(store, "c", "l", 3))
    stage.act("b", lambda store: CountDownLatch.get(store, "c", "l").count(), after=60)
    stage.play()
    assert stage.said["b"] == 3
    assert isinstance(stage.said["a"], OutcomeUnknown)


def test_a_partys_count_in_doubt_whose_outcome_cannot_be_read_is_unknown():
    stage = Stage({"a": {2: Fault(Kind.REPLY_LOST), **unanswered(4)}})
    stage.act("setup", lambda store: CountDownLatch.create(store, "c", "l", 3))
    stage.act("a", lambda store: CountDownLatch.get(store, "c", "l").count_down(party="p"), after=0.1)
    stage.act("b", lambda store: CountDownLatch.get(store, "c", "l").count(), after=60)
    stage.play()
    assert stage.said["b"] == 2
    assert isinstance(stage.said["a"], OutcomeUnknown)


def test_a_circular_queue_whose_creation_in_doubt_cannot_be_read_is_unknown():
    stage = Stage({"a": {4: Fault(Kind.REPLY_LOST), **unanswered(6)}})
    stage.act("a", lambda store: LargeQueue.create(store, "q", 4, entries_per_record=4))
    stage.act("b", lambda store: LargeQueue.open(store, "q").info().capacity, after=60)
    stage.play()
    assert stage.said["b"] == 4
    assert isinstance(stage.said["a"], OutcomeUnknown)


def test_a_refused_create_whose_outcome_cannot_be_read_but_was_never_in_doubt_changed_nothing():
    stage = Stage({"a": unanswered(2)})
    stage.act("setup", lambda store: CountDownLatch.create(store, "c", "l", 3))
    stage.act("a", lambda store: CountDownLatch.create(store, "c", "l", 5), after=0.1)
    stage.play()
    assert stage.said["a"].code == "UNAVAILABLE"


def test_a_count_that_was_refused_for_want_of_enough_and_then_could_not_go_on_is_unknown():
    """It was `Unavailable`, though the request that was refused may come again when the count has risen."""
    stage = Stage({"a": {2: Fault(Kind.DUPLICATE, 2.0), **unanswered(3)}})
    stage.act("setup", lambda store: CountUpDownLatch.create(store, "c", "l", 1))
    stage.act("a", lambda store: CountUpDownLatch.get(store, "c", "l").count_down(2), after=0.1)
    stage.act("b", lambda store: CountUpDownLatch.get(store, "c", "l").count_up(4), after=1)
    stage.act("c", lambda store: CountUpDownLatch.get(store, "c", "l").count(), after=60)
    stage.play()
    assert stage.said["b"] == 5
    assert stage.said["c"] == 3
    assert isinstance(stage.said["a"], OutcomeUnknown)


def test_a_refused_update_that_arrives_again_after_it_was_given_up_is_applied_not_promised():
    """TCP delivers nothing twice, and the client sends each request once: P1."""
    stage = Stage({"a": {1: Fault(Kind.DUPLICATE, 2.0)}})
    stage.act("setup", lambda store: store.operate(KEY, Put("n", 1), exists=Exists.CREATE))
    stage.act("a", lambda store: store.operate(KEY, Put("n", 9), when=N.eq(2), once=Once(8)), after=0.1)
    stage.act("b", lambda store: store.operate(KEY, Put("n", 2)), after=1)
    stage.play()
    assert isinstance(stage.said["a"], Refused)
    assert stage.bins(KEY)["n"] == 9


def test_a_create_that_lands_after_its_latch_was_deleted_makes_it_again_not_promised():
    """A deleted record remembers nothing: P8. It ends by its time to live."""
    stage = Stage({"a": {1: Fault(Kind.LATE, 3.0)}})
    stage.act("a", lambda store: CountDownLatch.create(store, "c", "l", 3))
    stage.act("b", lambda store: CountDownLatch.get(store, "c", "l").delete(), after=2)
    stage.act("c", lambda store: CountDownLatch.get(store, "c", "l").count(), after=5)
    stage.play()
    assert stage.said["b"] is True
    assert stage.said["c"] == 3


def test_a_release_in_doubt_may_say_true_though_somebody_else_broke_the_lock_not_promised():
    """Its first attempt was lost, and its second is refused either way. It frees nobody else's acquisition."""
    stage = Stage({"a": {2: Fault(Kind.DROPPED)}})

    def holder(store):
        patient = store.with_policy(RetryPolicy(attempts=2, wait=3.0, max_wait=3.0))
        return FencedLock(patient, "lock", lease=0.5).acquire(5).release()

    stage.act("a", holder)
    stage.act("b", lambda store: FencedLock(store, "lock", lease=30.0).acquire(2).fence, after=0.1)
    stage.play()
    assert stage.said["a"] is True
    assert stage.bins(Key(LOCKS, "lock"))["locked"] == 1


def test_a_stamp_that_comes_once_more_leaves_a_message_with_its_consumer():
    """The first stamp came before the message, a later one found it: they carry one delivery id."""
    stage = Stage({"p": {3: 0.2}, "c": {4: Fault(Kind.DUPLICATE, 0.4)}})

    def consumer(store):
        (delivery,) = queue_on(store).receive(1, timeout=1)
        store.seams.sleep(1)
        delivery.ack()
        return delivery.attempts

    stage.act("setup", queue_on)
    stage.act("p", lambda store: queue_on(store).publish("m"), after=0.1)
    stage.act("c", consumer, after=0.2)
    stage.play()
    assert stage.plan.fired[Kind.DUPLICATE] == 1
    assert stage.said["c"] == 1
    assert not any("data" in stored.bins for stored in stage.server.snapshot().values())


def test_a_failure_that_is_paused_as_it_stores_the_message_for_later_makes_it_come_twice_not_promised():
    """Nobody asks once more between the beginning of a nack and its write; a sweep has moved the message: P5.40."""
    stage = Stage({"c": {"E/q": Fault(Kind.PAUSE, 10.0)}})

    def consumer(store):
        queue = retrying_queue_on(store)
        (delivery,) = queue.receive(1)
        with suppress(LeaseLost):
            delivery.nack()
        depth = queue.depth()
        return depth.ready, depth.delayed

    stage.act("p", lambda store: retrying_queue_on(store).publish("m"))
    stage.act("c", consumer, after=0.5)
    stage.act("s", lambda store: Sweeper(retrying_queue_on(store).registry, Office(Term(1))).run_once(), after=6)
    stage.play()
    assert stage.said["c"] == (1, 1)


def test_a_message_of_which_only_the_trace_was_not_written_is_not_known_by_a_given_id_not_promised():
    """It is published all the same, and a handler gets it: an error would let its publisher repeat it (P26)."""
    stage = Stage({"p": {"q/mine": [Fault(Kind.ROW)] * 100}})

    def consumer(store):
        queue = queue_on(store)
        return queue.status("mine").state, queue.receive(1)[0].message_id

    stage.act("p", lambda store: queue_on(store).publish("m", message_id="mine"))
    stage.act("c", consumer, after=10)
    stage.play()
    assert stage.said["p"] == "mine"
    assert stage.said["c"] == (State.UNKNOWN, "mine")


def test_attempts_of_a_copy_that_is_stored_late_are_its_own():
    """Its consumer was paused in its nack until the message was done elsewhere: one attempt seemed to be missing."""
    plan = SinglePlan({56: Fault(Kind.SLOW_PRODUCER, 12.0)})
    assert not simulate(SCENARIOS["retry"], 57, plan, quiet=True).violations
    assert plan.fired[Kind.SLOW_PRODUCER] == 1


@pytest.mark.parametrize("seed", [173_000_532, 174_000_338, 173_001_032, 180_000_546])
def test_an_attempt_that_the_store_counts_and_nobody_makes_is_no_violation(seed):
    """A stamp that comes once more, late; and that of a consumer which could not park a message as its attempts end."""
    assert not random_mixes("retry", [seed]).violated


def test_a_result_by_a_given_id_whose_trace_was_not_written_is_not_found():
    """The store was away for that row of the publish only: it was taken for a lost result."""
    assert not random_mixes("results", [161_000_353]).violated


@pytest.mark.parametrize("kind", [Kind.CRASH_AFTER, Kind.REPLY_LOST])
def test_a_stage_plays_what_the_script_says(kind):
    stage = Stage({"a": {1: Fault(kind)}})
    stage.act("a", lambda store: store.operate(KEY, Put("n", 1), exists=Exists.CREATE))
    stage.play()
    assert stage.bins(KEY)["n"] == 1
    assert stage.plan.fired[kind] == 1


@pytest.mark.parametrize("seed", [1_000_977, 2_000_333])
def test_a_message_whose_write_is_in_doubt_and_is_not_sent_again_is_unknown(seed):
    """It was `Unavailable`, which says that nothing was published, though the message was there."""
    assert not random_mixes("publisher", [seed]).violated


def test_a_message_that_is_done_though_its_publishing_raised_may_have_no_id_in_its_batch():
    """The record of the ids was away for as long as its publisher tried, and two messages were there."""
    assert not random_mixes("batches", [1_000_099]).violated


def test_a_message_whose_mover_died_before_the_servers_clock_was_set_back_comes_once_that_is_right():
    """A search does not list it meanwhile, as it is marked: that was taken for a loss."""
    assert not random_mixes("retry", [1_000_042]).violated


def test_results_that_were_begun_before_the_batch_was_closed_do_not_end_as_if_these_were_all():
    """Whoever reads is slow: a call ends, and the batch is closed, between the first block and the second."""
    assert not random_mixes("batches", [2_002]).violated
