"""The shovel: what is due comes back, what is not waits, what is parked stays, and nothing is lost on the way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from latchwork.errors import InvalidRequest, InvalidShovelInterval
from latchwork.queue import QueueConfig, QueueRegistry, Shovel, ShovelConfig
from latchwork.queue.sharded.envelope import PREVIOUS_ATTEMPTS
from latchwork.queue.sharded.pointers import LOAD
from latchwork.queue.sharded.upkeep.upkeep import Shoveling
from latchwork.retry import Poll
from latchwork.store import MemoryStore, Put
from latchwork.testing.clock import InlineClock


def sidelined(process, payloads, **nack):
    """Publish, receive and fail these; their message ids."""
    ids = process.queue.publish_many(payloads)
    for delivery in process.queue.receive(len(ids)):
        delivery.nack(**nack)
    return ids


def test_a_failed_message_comes_back_with_its_attempts_reason_and_headers(world):
    process = world.process()
    process.queue.publish("a", headers={"trace": "7"})
    process.queue.receive()[0].nack("exception", error="ValueError: x")
    report = Shovel(process.queue).run_once()
    assert (report.taken, report.moved, report.postponed) == (1, 1, 0)
    (delivery,) = process.queue.receive()
    assert (delivery.payload, delivery.attempts, delivery.reason) == ("a", 2, "exception")
    assert (delivery.last_error, delivery.headers) == ("ValueError: x", {"trace": "7"})
    assert process.queue.depth().sideline == 0


def test_a_message_that_is_not_due_waits_at_the_tail_and_the_pass_ends(simulated):
    simulated.options = {"backoff": Poll(low=60, high=60, jitter=0)}
    process = simulated.process()
    sidelined(process, ["a", "b", "c"])
    shovel = Shovel(process.queue)
    report = shovel.run_once()
    assert (report.taken, report.moved, report.postponed) == (3, 0, 3)
    assert process.queue.receive() == []
    simulated.pass_time(61)
    assert shovel.run_once().moved == 3
    assert {delivery.payload for delivery in process.queue.receive(10)} == {"a", "b", "c"}


def test_parked_messages_are_never_shovelled(simulated):
    simulated.options = {"max_deliveries": 1}
    process = simulated.process()
    sidelined(process, ["a"])
    Shovel(process.queue).run_once()
    assert process.queue.receive() == []
    assert process.queue.depth().parked == 1
    assert Shovel(process.queue).run_once().taken == 0
    assert [message.reason for message in process.queue.parked.peek()] == ["exhausted"]


def test_redrive_brings_back_what_was_asked_for_with_its_history(world):
    world.options = {"max_deliveries": 1}
    process = world.process()
    ids = sidelined(process, ["a", "b", "c"])
    Shovel(process.queue).run_once()
    assert process.queue.receive(10) == []
    before = process.queue.parked.peek(10)
    assert {message.message_id for message in before} == set(ids)
    assert process.queue.redrive(2, reason="rejected") == []
    assert process.queue.depth().parked == 3
    dry = process.queue.redrive(2, dry_run=True)
    assert process.queue.depth().parked == 3
    done = process.queue.redrive(2)
    assert len(done) == len(dry) == 2
    assert process.queue.depth().parked == 1
    deliveries = process.queue.receive(10)
    assert {delivery.message_id for delivery in deliveries} == {message.message_id for message in done}
    assert {(d.attempts, d.headers[PREVIOUS_ATTEMPTS], d.reason) for d in deliveries} == {(1, "1", "exhausted")}


def test_redrive_by_reason_leaves_the_others_parked(simulated):
    simulated.options = {"max_deliveries": 2}
    simulated.process().queue.publish_many([{"a": 1}, {"a": "not a number"}])
    simulated.options |= {"codec": dict[str, int]}
    process = simulated.process()
    for _ in range(4):
        for delivery in process.queue.receive(10):
            delivery.nack()
        Shovel(process.queue).run_once()
    assert {message.reason for message in process.queue.parked.peek(10)} == {"exhausted", "unreadable"}
    assert [message.reason for message in process.queue.redrive(10, reason="unreadable")] == ["unreadable"]
    assert [message.reason for message in process.queue.parked.peek(10)] == ["exhausted"]


def test_two_shovels_at_once_move_each_message_once(simulated):
    process, other = simulated.process(), simulated.process()
    ids = sidelined(process, list(range(20)))
    passes = []
    began = process.store._number
    process.store.plan = {began + 2: lambda: passes.append(Shovel(other.queue).run_once())}
    passes.append(Shovel(process.queue).run_once())
    assert sum(report.moved for report in passes) == 20
    assert sorted(delivery.message_id for delivery in process.queue.receive(100)) == sorted(ids)


def test_a_leader_whose_term_is_lost_claims_no_further_batch(simulated):
    simulated.options = {"shards": 1, "shovel": ShovelConfig(60)}
    process = simulated.process()
    process.queue.publish_many(list(range(2000)))
    process.queue.fail_many(process.queue.receive(2000), [("rejected", None)] * 2000)
    leadership = SimpleNamespace(lost=simulated.clock.event(), check=lambda: None)
    duty = Shoveling(SimpleNamespace(queues=lambda: [process.queue], failure_log=lambda: None))
    process.store.plan[process.store._number + 2] = leadership.lost.set  # as the first batch is claimed
    duty.run(leadership)
    assert (process.queue.depth().ready, process.queue.depth().sideline) == (1000, 1000)


def test_a_slot_whose_message_never_came_is_given_up_after_the_grace(simulated):
    process = simulated.process()
    process.queue.sideline.pointers.reserve({0: 2})
    report = Shovel(process.queue).run_once()
    assert (report.taken, report.tombstones) == (0, 2)
    assert process.queue.sideline.pointers.states()[0].expired == 2, "they count as such"
    assert simulated.clock.monotonic() >= 0.25


@pytest.mark.long
def test_a_damaged_number_of_messages_ends_a_pass_which_the_next_one_goes_on(simulated):
    process = simulated.process()
    sidelined(process, ["a"])
    side = process.queue.sideline.pointers
    (state,) = [one for one in side.states() if one.loaded]
    simulated.store.operate(side.pointers_key(state.shard), Put(LOAD, 10_000_000))
    first = Shovel(process.queue).run_once()
    assert (first.moved, first.tombstones) == (1, 999 + 20_000)
    assert Shovel(process.queue).run_once().tombstones == 20_000


def test_a_shovel_needs_an_interval_to_be_started_and_redrive_a_sensible_limit(simulated):
    process = simulated.process()
    with pytest.raises(InvalidShovelInterval):
        Shovel(process.queue).start()
    for limit in (0, -1, True, 10**9, "3"):
        with pytest.raises(InvalidRequest, match="limit"):
            process.queue.redrive(limit)
    with pytest.raises(InvalidRequest, match="reason"):
        process.queue.redrive(1, reason="bored")


def test_a_pass_costs_a_few_calls_for_a_thousand_messages(simulated):
    simulated.shards = 1
    process = simulated.process()
    process.queue.publish_many(list(range(1000)))
    process.queue.fail_many(process.queue.receive(1000), [("rejected", None)] * 1000)
    began = process.calls
    assert Shovel(process.queue).run_once().moved == 1000
    assert process.calls - began <= 6


def test_a_started_shovel_runs_at_its_interval_and_stops(tmp_path):
    from latchwork.store import SQLiteStore

    store = SQLiteStore(tmp_path / "s.db", synchronous="off")
    with pytest.warns(UserWarning, match="unsafe"):
        config = QueueConfig("q", shards=1, shovel=ShovelConfig(1, 3), unsafe_limits=True)
    queue = QueueRegistry(store, "c").create(config)
    queue.publish("a")
    queue.receive()[0].nack()
    shovel, run_once = Shovel(queue), []

    def fails_once():
        run_once.append(1)
        return 1 / 0 if len(run_once) == 1 else Shovel.run_once(shovel)

    shovel.run_once = fails_once  # a defect must not end what nobody would start again
    shovel.start()
    (delivery,) = queue.receive(timeout=20)
    assert delivery.attempts == 2
    assert len(run_once) > 1
    assert shovel.stop()
    assert shovel.stop()


def test_a_refresh_that_fails_in_any_way_does_not_end_a_started_shovel(monkeypatch, caplog):
    clock = InlineClock()
    queue = QueueRegistry(MemoryStore(clock), "c").create(QueueConfig("q", shards=1, shovel=ShovelConfig(30)))
    queue.publish("a")
    queue.receive()[0].nack()
    monkeypatch.setattr(queue.registry, "refresh", lambda: 1 / 0)
    monkeypatch.setattr(queue.registry, "next_refresh", 0)
    shovel = Shovel(queue)
    clock.at(61, shovel._stop.set)
    shovel.start()
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert [delivery.payload for delivery in queue.receive()] == ["a"]
