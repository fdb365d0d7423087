"""The effects of a message happen once, however often it is delivered (docs/protocols P23), over every backend."""

from __future__ import annotations

import threading
import uuid
import warnings
from contextlib import suppress
from datetime import timedelta

import pytest
from msgspec.structs import force_setattr, replace

from latchwork.coord.effects import marks
from latchwork.coord.effects.marks import BIN, GENERATION
from latchwork.errors import (
    AlreadyExists,
    Corrupt,
    FencedOut,
    InvalidRequest,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
)
from latchwork.queue import QueueConfig
from latchwork.store import Add, Bin, Exists, Key, Put, Read
from latchwork.testing.stores import Fault

RICH = Bin("balance") >= 10


class Vague:
    """It is neither equal to anything nor different, as an array of numpy that is compared."""

    def __eq__(self, other):
        raise ValueError("neither")

    __hash__ = object.__hash__


@pytest.fixture
def account(world):
    """An account with 100; the real server is shared, so each test has its own."""
    key = Key(f"{world.client}_accounts", uuid.uuid4().hex[:10])
    world.store.operate(key, Put("balance", 100), exists=Exists.ANY)
    return key


@pytest.fixture
def small(monkeypatch):
    """A record has room for four entries."""
    monkeypatch.setattr(marks, "ROOM", 4)


def balance(world, account):
    return world.store.get(account).bins["balance"]


def delivered(world, plan=None, **options):
    """A process, and a message that it was handed."""
    process = world.process(plan, **options)
    process.queue.publish("m", message_id=uuid.uuid4().hex)
    (delivery,) = process.queue.receive()
    return process, delivery


def again(process, delivery):
    """The next delivery of the message, after this one has failed."""
    delivery.nack()
    return next(one for one in process.queue.sideline.receive(100) if one.message_id == delivery.message_id)


def twice(process, delivery):
    """The message's first delivery, then the next one, after that has failed."""
    yield delivery
    yield again(process, delivery)


def debit(delivery, account, **options):
    return delivery.operate(account, Add("balance", -10), **options)


# ---- an effect on a record


def test_an_effect_is_applied_once_for_all_deliveries_of_a_message_and_its_result_is_kept(world, account):
    process, first = delivered(world)
    assert debit(first, account, result=Bin("balance")) == 90
    world.store.operate(account, Add("balance", 5))
    later = again(process, first)
    assert later.attempts == 2
    assert debit(later, account, result=Bin("balance")) == 90
    assert balance(world, account) == 95


def test_it_costs_one_call_and_three_where_it_was_applied_before(world, account):
    process, first = delivered(world)
    for delivery, calls in zip(twice(process, first), (1, 3), strict=True):
        before = process.calls
        debit(delivery, account)
        assert process.calls - before == calls


def test_a_guarded_effect_creates_a_record_where_that_is_asked_for_and_only_there(world, account):
    _, first = delivered(world)
    absent = Key(account.set, f"{account.name}-absent")
    with pytest.raises(NotFound):
        debit(first, absent, when=RICH)
    assert debit(first, absent, when=RICH, or_absent=True) is True
    assert balance(world, absent) == -10


def test_another_message_another_record_and_another_name_are_other_effects(world, account):
    _, first = delivered(world)
    _, other = delivered(world)
    beside = Key(account.set, f"{account.name}-2")
    for delivery in (first, other):
        debit(delivery, account)
        debit(delivery, account, name="n" * 200)
        assert delivery.operate(beside, Add("balance", 20)) is True
    assert (balance(world, account), balance(world, beside)) == (60, 40)


def test_each_group_has_effects_of_its_own_and_a_move_or_a_redrive_keeps_them(world, account):
    process = world.process()
    other, group = process.registry.create(world.config()), process.queue.group("audit")
    process.queue.publish("m")
    (own,), (of_group,) = process.queue.receive(), group.receive()
    assert own.message_id == of_group.message_id
    debit(own, account)
    debit(of_group, account)
    assert balance(world, account) == 80
    own.nack()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = world.config()
    assert other.config == config
    target = process.registry.create(_renamed(config))
    process.queue.sideline.move([own.message_id], target)
    (moved,) = target.receive()
    debit(moved, account)
    assert balance(world, account) == 80


def _renamed(config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueConfig(
            "q-by-hand", shards=1, retry=False, sweep_duration=config.sweep_duration,
            handler_timeout=config.handler_timeout, unsafe_limits=config.unsafe_limits,
        )  # fmt: skip


def test_two_effects_of_one_name_on_one_record_are_refused_before_any_call(world, account):
    process, first = delivered(world)
    debit(first, account)
    before = process.calls
    with pytest.raises(InvalidRequest, match="a name of its own"):
        debit(first, account)
    assert process.calls == before


def test_the_guard_refuses_and_a_later_delivery_asks_again(world, account):
    process, first = delivered(world)
    world.store.operate(account, Put("balance", 5))
    with pytest.raises(Refused) as refusal:
        debit(first, account, when=RICH)
    assert not isinstance(refusal.value, FencedOut)
    world.store.operate(account, Put("balance", 30))
    assert debit(again(process, first), account, when=RICH) is True
    assert balance(world, account) == 20


def test_with_otherwise_a_refusal_is_decided_for_all_deliveries(world, account):
    process, first = delivered(world)
    world.store.operate(account, Put("balance", 5))
    assert debit(first, account, when=RICH, otherwise=False) is False
    world.store.operate(account, Put("balance", 30))
    assert debit(again(process, first), account, when=RICH, otherwise=False) is False
    assert balance(world, account) == 30


def test_a_record_that_is_made_by_an_effect_is_made_once(world):
    process, first = delivered(world)
    made, absent = (Key(f"{world.client}_made", uuid.uuid4().hex) for _ in range(2))
    for delivery in twice(process, first):
        assert delivery.operate(made, Put("state", "paid"), exists=Exists.CREATE, result=7) == 7
        with pytest.raises(NotFound):
            delivery.operate(absent, Put("state", "paid"), exists=Exists.UPDATE)
        with pytest.raises(NotFound):
            delivery.operate(absent, Put("state", "paid"), when=RICH)
    _, other = delivered(world)
    with pytest.raises(AlreadyExists):
        other.operate(made, Put("state", "open"), exists=Exists.CREATE)
    assert world.store.get(made).bins["state"] == "paid"


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost", "dropped", "duplicate", Fault("late", after=2)])
def test_a_fault_at_the_update_applies_it_once_or_says_that_it_is_unknown(world, account, fault):
    process, first = delivered(world)
    process.store.next(fault)
    with suppress(OutcomeUnknown):
        assert debit(first, account, result=Bin("balance")) == 90
    process.store.deliver()
    assert debit(again(process, first), account, result=Bin("balance")) == 90
    assert balance(world, account) == 90


def test_a_refusal_after_a_doubt_is_unknown_as_the_update_may_still_arrive(world, account):
    process, first = delivered(world)
    world.store.operate(account, Put("balance", 5))
    process.store.next(Fault("late"))
    with pytest.raises(OutcomeUnknown):
        debit(first, account, when=RICH)
    world.store.operate(account, Put("balance", 30))
    process.store.deliver()  # it arrives now, and its guard holds
    assert debit(again(process, first), account, when=RICH) is True
    assert balance(world, account) == 20


def test_an_attempt_that_was_replaced_is_refused_and_does_not_fail_the_message(simulated):
    world = simulated
    account = Key("accounts", "a")
    world.store.operate(account, Put("balance", 100), exists=Exists.ANY)
    _, former = delivered(world)
    sweeper = world.process().sweeper()
    sweeper.run_once()
    world.lapse()
    sweeper.run_once()
    other = world.process()
    (newer,) = other.queue.sideline.receive()
    assert newer.message_id == former.message_id
    force_setattr(former, "received", world.clock.monotonic())  # as one whose clock stood still
    debit(newer, account)
    with pytest.raises(FencedOut):
        debit(former, account)
    assert former.settled, "a handler that ends with this error fails nothing"
    assert balance(world, account) == 90
    newer.ack()


def test_an_attempt_that_knows_that_it_was_replaced_asks_nobody(simulated):
    world = simulated
    process, former = delivered(world)
    world.lapse()
    before = process.calls
    for effect in (lambda: former.operate(Key("accounts", "a"), Add("n", 1)), former.once("mail").__enter__):
        with pytest.raises(FencedOut, match="extend it"):
            effect()
    assert process.calls == before


# ---- the room for marks


def test_a_record_remembers_more_effects_than_its_bin_has_room_for(world, account, small):
    process = world.process()
    process.queue.publish_many(range(12))
    first = process.queue.receive(12)
    assert [debit(one, account, result=Bin("balance")) for one in first] == list(range(90, -30, -10))
    assert len(world.store.get(account).bins[BIN]) <= 4
    for delivery in first:
        delivery.nack()
    other = world.process()
    later = {one.payload: one for one in other.queue.sideline.receive(12)}
    assert [debit(later[n], account, result=Bin("balance")) for n in range(12)] == list(range(90, -30, -10))
    assert balance(world, account) == -20


def test_it_costs_two_calls_where_marks_have_left_the_bin_and_making_room_five_more(world, account, monkeypatch):
    monkeypatch.setattr(marks, "ROOM", 20)
    process = world.process()
    process.queue.publish_many(range(60))
    costs = []
    for delivery in process.queue.receive(60):
        before = process.calls
        debit(delivery, account)
        costs.append(process.calls - before)
    assert costs[:20] == [1] * 20
    assert costs[20] == 6  # refused, the marks, their own records, they leave the bin, the own record, the update
    assert set(costs[21:]) == {2, 7}
    assert costs[21:].count(7) == 4


def test_a_mark_that_moves_between_the_look_and_the_update_is_found(world, account, small):
    """A process has just read that its mark is not moved. Then another one applies the effect and moves the mark."""
    process, first = delivered(world)
    process.queue.publish_many(range(20))
    others = iter(process.queue.receive(20))
    for _ in range(6):
        debit(next(others), account)  # now the process knows a generation, and looks for its mark before the update
    other = world.process()
    twin = handle_of(other, first)

    def between():
        debit(twin, account)
        for delivery in others:
            debit(handle_of(other, delivery), account)

    process.store.plan[process.store._number + 2] = between
    assert debit(first, account) is True
    assert balance(world, account) == 100 - 10 * 21


def test_each_bin_of_a_record_has_its_own_memory(world, account, small):
    process, first = delivered(world)
    process.queue.publish_many(range(12))
    debit(first, account, bin="here")
    for number, delivery in enumerate(process.queue.receive(12)):
        debit(delivery, account, bin=("here", "there")[number % 2])
    debit(first, account, bin="there")
    assert balance(world, account) == 100 - 10 * 14


def handle_of(process, delivery):
    """The same delivery, in the hands of another process: as a copy of an attempt, whose requests arrive late."""
    return type(delivery)(delivery.payload, delivery.held, process.queue, process.store.seams.monotonic())


def test_marks_are_kept_for_longer_while_a_message_is_asked_for_again(simulated, monkeypatch):
    """A message may be parked and redriven for years: each time its effects are remembered anew."""
    monkeypatch.setattr(marks, "ROOM", 4)
    world, account = simulated, Key("accounts", "a")
    world.store.operate(account, Put("balance", 100), exists=Exists.ANY)
    process, first = delivered(world)
    process.queue.publish_many(range(8))
    others = process.queue.receive(8)
    keep = timedelta(days=2)
    debit(first, account, keep=keep)
    for delivery in others[:4]:
        debit(delivery, account, keep=keep)
    for _ in range(5):
        world.clock.advance(timedelta(days=1.2).total_seconds())
        later = handle_of(process, first)
        debit(later, account, keep=keep)
    for delivery in others[4:]:
        force_setattr(delivery, "received", world.clock.monotonic())
        debit(delivery, account, keep=keep)
    assert balance(world, account) == 100 - 9 * 10
    debit(handle_of(process, first), account, keep=keep)
    assert balance(world, account) == 100 - 9 * 10


def test_a_record_near_its_limit_gives_its_marks_away_and_then_refuses(simulated):
    world, big = simulated, Key("accounts", "big")
    limit = world.store.describe().record_size_limit
    process = world.process()
    process.queue.publish_many(range(30))
    deliveries = process.queue.receive(30)
    for delivery in deliveries[:20]:
        delivery.operate(big, Add("n", 1), result="r" * 100)
    # The record is as large as it can be, but for the marks.
    world.store.operate(big, Put("data", "x" * (limit - 3_600)))
    deliveries[20].operate(big, Put("more", "y" * 1_500))
    assert len(world.store.get(big, BIN).bins[BIN]) == 2
    with pytest.raises(RecordTooBig):
        deliveries[21].operate(big, Put("more", "y" * 4_000))
    assert world.store.get(big).bins["n"] == 20


def test_a_damaged_bin_is_told_of_and_nothing_is_written(world, account):
    for wrong in (7, {b"0" * 16: 3}, {GENERATION: "x"}):
        world.store.operate(account, Put(BIN, wrong))
        _, delivery = delivered(world)
        if wrong == {b"0" * 16: 3}:
            debit(delivery, account)  # a mark of others that is damaged is not looked at
            continue
        with pytest.raises(Corrupt, match=BIN):
            debit(delivery, account)
    assert balance(world, account) == 90


def test_a_message_without_an_id_has_no_effects_of_its_own(simulated):
    process, first = delivered(simulated)
    held = first.held._replace(envelope=replace(first.held.envelope, msg_id=""))
    nameless, before = type(first)(first.payload, held, first.view, first.received), process.calls
    for effect in (lambda: debit(nameless, Key("accounts", "a")), lambda: nameless.once("mail")):
        with pytest.raises(InvalidRequest, match="no id"):
            effect()
    assert process.calls == before


@pytest.mark.parametrize(
    ("ops", "options", "said"),
    [
        ((Read("balance"),), {}, "result="),
        ((Put(BIN, 1),), {}, "bin=..."),
        ((), {}, "no operation"),
        ((Add("balance", 1),), {"name": 7}, "name"),
        ((Add("balance", 1),), {"name": Vague()}, "name"),
        ((Add("balance", 1),), {"name": "n" * 201}, "at most 200"),
        ((Add("balance", 1),), {"keep": 1}, "keep"),
        ((Add("balance", 1),), {"when": 7}, "when"),
        ((Add("balance", 1),), {"when": RICH, "exists": Exists.ANY}, "or_absent"),
        ((Add("balance", 1),), {"bin": "a name that is too long"}, "bin name"),
        ((Add("balance", 1),), {"result": object()}, "object"),
    ],
)
def test_what_no_effect_can_be_is_refused_before_any_call(simulated, ops, options, said):
    process, delivery = delivered(simulated)
    before = process.calls
    with pytest.raises(InvalidRequest, match=said):
        delivery.operate(Key("accounts", "a"), *ops, **options)
    assert process.calls == before


# ---- a step with any effect


def test_a_step_is_done_once_and_later_deliveries_get_its_result_and_the_same_token(world):
    process, first = delivered(world)
    sent = []
    for delivery in twice(process, first):
        with delivery.once("mail") as step:
            if not step.done:
                sent.append(step.token)
                step.result = {"receipt": 7}
        assert step.result == {"receipt": 7}
        assert delivery.once("mail").token == sent[0]
        assert delivery.once("sms").run(sent.append, "sms") is None
    assert sent == [sent[0], "sms"]
    steps = process.queue.steps(first.message_id)
    assert {name: done.kept for name, done in steps.items()} == {"mail": [{"receipt": 7}], "sms": [None]}
    assert process.queue.steps("another") == {}


def test_a_step_costs_two_calls_also_where_it_is_done(world):
    process, first = delivered(world)
    for delivery in twice(process, first):
        before = process.calls
        delivery.once("mail").run(lambda: 7)
        assert process.calls - before == 2


def test_a_step_that_is_kept_for_a_short_time_ends_no_other_step_of_its_message(simulated):
    world = simulated
    process, first = delivered(world)
    first.once("mail").run(lambda: "sent")
    first.once("log", keep=60).run(lambda: None)
    later = again(process, first)
    world.pass_time(120)
    assert later.once("mail").run(lambda: "sent twice") == "sent"


def test_a_step_whose_work_raised_is_done_again_and_with_the_same_token(world):
    process, first = delivered(world)
    step = first.once("mail")
    with pytest.raises(ZeroDivisionError):
        step.run(lambda: 1 // 0)
    later = again(process, first).once("mail")
    assert later.token == step.token
    assert later.run(lambda: 7) == 7


def test_one_delivery_works_on_a_step_at_a_time(world):
    process, first = delivered(world)
    later = again(process, first)
    began, go_on, found = threading.Event(), threading.Event(), []

    def slow():
        began.set()
        assert go_on.wait(30)
        return "first"

    thread = threading.Thread(target=lambda: found.append(first_step.run(slow)))
    first_step = handle_of(process, first).once("mail")
    thread.start()
    assert began.wait(30)
    with pytest.raises(LockUnavailable, match="under way"):
        later.once("mail", timeout=0).run(lambda: "second")
    go_on.set()
    thread.join(30)
    assert found == ["first"]
    assert later.once("mail").run(lambda: "second") == "first"
