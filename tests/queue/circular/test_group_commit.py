"""Who leads, whose time is over, and who is told what: the threads' parts are played one after the other."""

from __future__ import annotations

import linecache
import math
import os
import sys
from itertools import takewhile

import pytest

from latchwork.errors import LatchworkError, LeaseLost, LockUnavailable, Misconfigured, OutcomeUnknown, Unavailable
from latchwork.queue import LargeQueue, Transaction
from latchwork.queue.circular import group_commit, plan
from latchwork.queue.circular.group_commit import Ticket, fail
from latchwork.queue.circular.plan import ENQUEUE, Request
from latchwork.retry import RetryPolicy
from latchwork.seams import Seams
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore, Outage
from tests.support import matrix


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def queue(store):
    LargeQueue.create(store.inner, "q", 10)
    return LargeQueue.open(store, "q")


class Woken:
    """A follower's event that remembers when it was set."""

    def __init__(self, clock):
        self.clock, self.at = clock, None

    def set(self):
        self.at = self.clock.monotonic()


def follower(queue, clock, value, until=None, txn=None):
    """Another thread's ticket, once it has handed in its work."""
    ticket = Ticket(Request(ENQUEUE, txn, values=[value], until=until), wake=Woken(clock))
    queue._work.line.waiting.append(ticket)
    return ticket


def leads_with_those_that_wait(queue, clock, value, until=None):
    """The ticket of another thread that leads, and has come before those that wait."""
    ticket = follower(queue, clock, value, until)
    queue._work.line.waiting.insert(0, queue._work.line.waiting.pop())
    ticket.leads = True
    return ticket


def held_by_another(store, clock, *, until):
    """Another process takes the lock, and keeps it until then."""
    lock = LargeQueue.open(store.inner, "q")._lock
    hold, start = lock.take("other", [], 5), clock.monotonic()
    for place in range(int((until - start) / 0.1)):
        clock.at(0.1 * place, lambda: lock.renew(hold))
    clock.at(until - start, lambda: lock.abandon(hold))


def taken_over(store, clock, *, until):
    """The lease runs out, and another process has the lock until then."""

    def take():
        clock.advance(1)
        held_by_another(store, clock, until=until)

    return take


def away(store, clock, *, until=2):
    """From this call on, the store is away until then."""

    def goes():
        store.plan = Outage(clock, 0, until)
        raise Unavailable("away")

    return goes


BRIDGES_2_S = RetryPolicy(attempts=10)


def before(store, plan):
    """What happens at the calls with these numbers, counted from now."""
    store.plan = {store._number + call: act for call, act in plan.items()}


def test_members_of_a_hold_that_failed_have_errors_of_their_own():
    one, other = (Ticket(Request(ENQUEUE, None)) for _ in range(2))
    fail([one, other], Unavailable("away", key="k"))
    one.request.error.details["dropped"] = 3
    assert (str(other.request.error), other.request.error.details) == ("away", {"key": "k"})


# ---- forks


def test_the_first_calls_of_a_forked_child_are_all_answered_though_they_come_at_once():
    """The second call comes while the first has just begun, which is when a handle would notice the fork."""
    seams = Seams()
    group = LargeQueue.create(MemoryStore(seams), "q", 10)._work

    def run(ticket):
        for request in group.line.take(ticket, ["first", "second"]):
            request.result = request.txn

    group._run = run
    group.line.led = True  # by a thread of the parent
    child = os.fork()
    if not child:
        done = 1
        try:
            make = seams.lock
            seams.lock = lambda: group.submit(Request(ENQUEUE, "second"), 0) and make()
            done = int(group.submit(Request(ENQUEUE, "first"), 0) != "first")
        finally:
            os._exit(done)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- time


def test_a_follower_may_wait_for_ever(queue, clock):
    led, waited = queue._work.line, []
    led.led = True  # by another thread

    class Wake(Woken):
        def wait(self, timeout):
            waited.append(timeout)
            led.pass_on(Ticket(None, leads=True))
            return True

    clock.event = lambda: Wake(clock)
    assert queue.enqueue("a", timeout=math.inf) == 0
    assert waited == [None]


def test_a_follower_that_is_given_the_lead_has_what_is_left_of_its_time(store, queue, clock):
    led = queue._work.line
    led.led = True  # by another thread
    held_by_another(store, clock, until=4)

    class Wake(Woken):
        def wait(self, timeout):
            self.clock.advance(0.75)
            led.pass_on(Ticket(None, leads=True))
            return True

    clock.event = lambda: Wake(clock)
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=1)
    assert clock.monotonic() == pytest.approx(1)


def test_a_leader_whose_time_is_over_does_not_fail_those_that_have_time(store, queue, clock):
    others = []
    before(
        store,
        {
            1: lambda: others.extend([follower(queue, clock, "b"), follower(queue, clock, "c", until=1.2)]),
            3: taken_over(store, clock, until=3),
        },
    )
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=1.2)
    patient, hasty = others
    assert isinstance(hasty.request.error, LockUnavailable)
    assert patient.request.error is None
    assert patient.leads
    queue._work._lead(patient)
    assert patient.request.result == range(1)
    assert [entry.value for entry in queue.dequeue_many(9)] == ["b"]


def test_those_that_have_time_left_come_before_those_that_were_handed_in_later(store, queue, clock):
    others = []
    before(
        store,
        {
            1: lambda: others.append(follower(queue, clock, "b")),
            2: lambda: others.append(follower(queue, clock, "c")),
            3: taken_over(store, clock, until=3),
        },
    )
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=1.5)
    queue._work._lead(others[0])
    assert [entry.value for entry in queue.dequeue_many(9)] == ["b", "c"]


def test_a_leader_that_has_time_goes_on_without_those_that_have_none(store, queue, clock):
    others = []
    before(
        store,
        {
            1: lambda: others.append(follower(queue, clock, "b", until=1.5)),
            3: taken_over(store, clock, until=3),
        },
    )
    assert queue.enqueue("a") == 0
    assert clock.monotonic() >= 3
    (hasty,) = others
    assert isinstance(hasty.request.error, LockUnavailable)
    assert hasty.wake.at == pytest.approx(1.5)
    assert not queue._work.line.led
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a"]


def test_a_transaction_that_waits_for_another_hold_is_still_the_one_that_was_begun(store, queue, clock):
    others, unique = [], clock.unique

    def handed_in():
        clock.unique = unique
        others.append(follower(queue, clock, "b", txn="t"))
        return unique()

    clock.unique = handed_in
    before(store, {3: taken_over(store, clock, until=3)})
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=1.5)
    assert LargeQueue.open(store.inner, "q").transaction("t", timeout=5) is None
    queue._work._lead(others[0])
    assert isinstance(others[0].request.error, LeaseLost)
    assert queue.info().size == 0


def test_an_outage_that_outlives_one_request_does_not_fail_those_of_its_hold_that_have_time(store, queue, clock):
    others = []
    store.policy = BRIDGES_2_S
    before(
        store,
        {
            1: lambda: others.append(follower(queue, clock, "b", until=0.2)),
            2: away(store, clock),
        },
    )
    assert queue.enqueue("a") == 0
    assert clock.monotonic() >= 2
    (hasty,) = others
    assert type(hasty.request.error) is Unavailable
    assert hasty.wake.at < 1
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a"]


def test_those_that_have_no_timeout_fail_when_the_stores_own_retries_end(store, queue, clock):
    others = []
    before(store, {1: lambda: others.append(follower(queue, clock, "b")), 2: away(store, clock, until=60)})
    with pytest.raises(Unavailable):
        queue.enqueue("a")
    assert clock.monotonic() < 1
    (other,) = others
    assert type(other.request.error) is Unavailable
    assert not queue._work.line.led


def test_what_no_time_cures_fails_all_requests_of_the_hold(store, queue, clock):
    others = []

    def full():
        raise Misconfigured("the namespace is read-only")

    before(store, {1: lambda: others.append(follower(queue, clock, "b", until=0.2)), 2: full})
    with pytest.raises(Misconfigured):
        queue.enqueue("a")
    assert type(others[0].request.error) is Misconfigured


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_commit_in_doubt_fails_only_those_whose_time_is_over(store, queue, clock, made, timeout):
    others = []
    store.policy = BRIDGES_2_S
    before(
        store,
        {
            1: lambda: others.append(follower(queue, clock, "b", until=0.2)),
            3: "reply_lost" if made else "request_lost",
            4: away(store, clock),
        },
    )
    assert queue.enqueue("a", timeout=timeout) == 0
    assert clock.monotonic() >= 2
    (hasty,) = others
    error = hasty.request.error
    assert type(error) is OutcomeUnknown
    assert hasty.wake.at < 1
    assert error.details["offsets"] == range(1, 2)
    found = queue.transaction(error.details["txn_id"], timeout=5)
    assert found == (Transaction(error.details["txn_id"], range(2)) if made else None)
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a", "b"][: 1 + made]


def test_a_commit_in_doubt_is_looked_for_once_for_all_that_have_no_timeout(store, queue, clock):
    store.policy = RetryPolicy(attempts=1)
    others = []
    before(store, {1: lambda: others.append(follower(queue, clock, "b")), 3: "reply_lost", 4: "dropped"})
    store.reset()
    with pytest.raises(OutcomeUnknown, match="ask transaction"):
        queue.enqueue("a")
    assert store.total == 4
    assert [(type(one.request.error), one.request.doubt) for one in others] == [(OutcomeUnknown, None)]


@pytest.mark.parametrize("made", [False, True])
def test_a_commit_in_doubt_of_a_leader_that_has_no_time_does_not_fail_those_that_have(store, queue, clock, made):
    line, leaders = queue._work.line, []
    line.led = True  # by another thread

    class Wake(Woken):
        def wait(self, timeout):
            if not leaders:  # the leader takes this request, too
                leaders.append(leads_with_those_that_wait(queue, clock, "a", until=0.2))
                queue._work._lead(leaders[0])
            return True

    clock.event = lambda: Wake(clock)
    before(store, {3: "reply_lost" if made else "request_lost", 4: away(store, clock)})
    assert queue.enqueue("b", timeout=60) == made
    assert type(leaders[0].request.error) is OutcomeUnknown
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a", "b"][1 - made :]


def test_a_commit_in_doubt_is_looked_for_under_the_requests_own_id(store, queue, clock):
    """The other caller has its answer, and may use its id again: then the entry of its id says nothing any more."""
    others = []

    def used_again():
        assert LargeQueue.open(store.inner, "q").enqueue("c", txn_id="t", timeout=5) == 2

    unique = clock.unique

    def handed_in():
        clock.unique = unique
        others.append(follower(queue, clock, "b", until=0.2, txn="t"))
        queue._work.line.waiting.reverse()
        return unique()

    clock.unique = handed_in
    clock.at(1.5, used_again)
    before(store, {3: "reply_lost", 4: away(store, clock)})
    assert queue.enqueue("a", timeout=60) == 1
    assert [entry.value for entry in queue.dequeue_many(9)] == ["b", "a", "c"]


def test_an_interrupted_thread_is_not_given_the_lead_though_its_work_goes_back(store, queue, clock):
    others = []

    before(
        store,
        {
            1: lambda: others.extend([follower(queue, clock, "b"), follower(queue, clock, "c")]),
            2: lambda: queue._work.line.leave(others[0]),
            3: taken_over(store, clock, until=3),
        },
    )
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=1.5)
    assert not others[0].leads
    assert others[1].leads


WATCHED = (group_commit.__file__, plan.__file__)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("made", [False, True])
def test_who_was_in_a_commit_that_was_interrupted_is_told_which_transaction_to_ask_for(store, queue, clock, made):
    others, commit = [], queue._lock.commit

    def interrupted(*args, **options):
        if made:
            commit(*args, **options)
        interrupt()

    queue._lock.commit = interrupted
    before(store, {1: lambda: others.append(follower(queue, clock, "b"))})
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("a")
    error = others[0].request.error
    assert type(error) is OutcomeUnknown
    assert error.details["offsets"] == range(1, 2)
    found = LargeQueue.open(store.inner, "q").transaction(error.details["txn_id"], timeout=5)
    assert found == (Transaction(error.details["txn_id"], range(2)) if made else None)
    assert queue.info().size == 2 * made


def test_who_has_no_answer_yet_when_the_leader_is_interrupted_is_told_which_transaction_to_ask_for(
    store, queue, clock, monkeypatch
):
    others = []

    def answer(commit):
        for request, _, result in commit.parts[:2]:
            request.result = result
        interrupt()

    monkeypatch.setattr(plan.CommitPlan, "answer", answer)
    before(store, {1: lambda: others.extend([follower(queue, clock, "b"), follower(queue, clock, "c")])})
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("a")
    answered, unknown = (other.request for other in others)
    assert (answered.result, answered.error) == (range(1, 2), None)
    assert type(unknown.error) is OutcomeUnknown
    assert unknown.error.details["offsets"] == range(2, 3)
    txn = unknown.error.details["txn_id"]
    assert queue.transaction(txn) == Transaction(txn, range(3))


@pytest.mark.parametrize("made", [False, True])
def test_who_was_in_a_commit_that_was_interrupted_looks_for_it(store, queue, clock, made):
    line, leaders = queue._work.line, []
    line.led = True  # by another thread

    class Wake(Woken):
        def wait(self, timeout):
            if not leaders:
                leaders.append(leads_with_those_that_wait(queue, clock, "a"))
                with pytest.raises(KeyboardInterrupt):
                    queue._work._lead(leaders[0])
                line.leave(leaders[0])
            return True

    clock.event = lambda: Wake(clock)
    before(store, {3: interrupt} if not made else {3: "reply_lost", 4: interrupt})
    assert queue.enqueue("b") == made
    assert [entry.value for entry in queue.dequeue_many(9)] == ["a", "b"][1 - made :]


def test_a_request_that_is_handed_in_again_is_not_answered_by_the_leader_before(queue, monkeypatch):
    """That one is interrupted when it has woken all: it still has their tickets."""
    tickets = []
    monkeypatch.setattr(group_commit, "Ticket", lambda request: tickets.append(Ticket(request)) or tickets[-1])
    request = Request(ENQUEUE, None, values=["a"])
    queue._work.submit(request, None)
    request.result = None
    queue._work.line.leave(Ticket(Request(ENQUEUE, None), taken=tickets))
    assert not request.answered


@pytest.mark.parametrize("hold", ["first", "second"])
def test_who_was_in_a_hold_that_was_interrupted_before_its_commit_knows_that_nothing_was_done(
    store, queue, clock, hold
):
    others = []

    def overtake():
        clock.advance(1)
        assert LargeQueue.open(store.inner, "q").enqueue("other", timeout=5) == 0

    rest = {2: interrupt} if hold == "first" else {3: overtake, 6: interrupt}
    before(store, {1: lambda: others.append(follower(queue, clock, "b")), **rest})
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("a")
    assert type(others[0].request.error) is Unavailable
    assert "nothing was committed" in str(others[0].request.error)
    assert queue.info().size == (hold == "second")


def interrupted(number, act):
    """Whether the act ran into an interrupt before the line with this number, of those that it runs in `WATCHED`."""
    left, traced = [number], sys.gettrace()

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in WATCHED:
            return None
        # On its way out a block has the line of its "with" once more, and no interrupt comes before it has let go.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        left[0] -= event == "line" and not text.startswith("with ")
        if not left[0]:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        act()
    except (KeyboardInterrupt, LatchworkError):
        pass
    finally:
        sys.settrace(traced)
    return left[0] <= 0


def out_of_time(clock):
    clock.advance(2)
    raise LockUnavailable("the lock was lost, and not to be had again")


HOLDS = {
    "done": lambda store, clock: {},
    "put back": lambda store, clock: {3: lambda: out_of_time(clock)},
    "failed": lambda store, clock: {3: "dropped"},
    "in doubt": lambda store, clock: {3: "reply_lost", 4: away(store, clock)},
}
"""What becomes of a hold from its commit on."""


def nobody_is_left_waiting(number, hold):
    """A hold with others in it, whose leader is interrupted before the line with this number; whether there is one."""
    clock, others = ManualClock(), []
    store = FaultyStore(MemoryStore(clock))
    queue = LargeQueue.create(store, "q", 10)
    store.policy = type(store.policy)(attempts=1)
    join = lambda: others.extend([follower(queue, clock, "b"), follower(queue, clock, "c", until=1.05)])  # noqa: E731
    before(store, {1: join, **HOLDS[hold](store, clock)})
    was = interrupted(number, lambda: queue.enqueue("a", timeout=1.05))
    store.plan = {}
    for other in others:
        if other.leads:
            assert other.wake.at is not None
            queue._work._lead(other)
        assert other.request.result or other.request.error
        if isinstance(other.request.error, OutcomeUnknown):
            assert other.request.error.details["txn_id"]
        assert other.wake.at is not None
    assert not queue._work.line.led
    assert queue.enqueue("d", timeout=5) is not None
    return was


@pytest.mark.parametrize("hold", HOLDS)
def test_whoever_is_interrupted_anywhere_leaves_nobody_waiting_and_the_lead_to_who_is_there(hold):
    lines = matrix.sample(range(1, 1_000), hold, least=330)
    assert len(list(takewhile(lambda number: nobody_is_left_waiting(number, hold), lines))) > 10
