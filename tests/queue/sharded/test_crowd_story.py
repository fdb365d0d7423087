"""The story of the crowd explains each message that comes again, and calls wrong what nothing explains."""

from __future__ import annotations

import pytest

from latchwork.queue import Publish, Sweeper

from .crowd_played import PlayedCrowd
from .crowd_worker import SWEEP, follow_up

AGAIN = "published by one that died, or by several"


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    return PlayedCrowd(tmp_path / "log", monkeypatch)


def explained(story) -> dict[tuple[str, str], tuple[int, int]]:
    """Of each message that came again: how often, and how often it may have come again."""
    return {place: (len(times) - 1, story.explained(place).total())
            for place, times in story.handled.items() if len(times) > 1}  # fmt: skip


def receive_and_fail(crowd, whom, number, what):
    """A reader fails one of two messages; at this call it is killed, or stopped."""
    publisher, reader = crowd.process(), crowd.process(whom, fails=1)
    publisher.publishing.published("-", publisher.publishing.names(2), publisher.queue.publish_many)
    reader.at(number, what)
    reader.until_dead(reader.handling.step)
    crowd.go_on(4 * SWEEP)
    return crowd.story()


FAILING = range(5, 9)
"""The calls of a reader after its claim and its stamp: store for later, remove, acknowledge."""


@pytest.mark.parametrize("whom", ["own", "a"])
@pytest.mark.parametrize("number", FAILING)
def test_each_message_of_a_reader_that_is_killed_is_explained(crowd, whom, number):
    story = receive_and_fail(crowd, whom, number, "crash_after")
    assert story.wrong() == []
    assert story.killed
    assert all(again <= may <= again + 1 for again, may in explained(story).values())


@pytest.mark.parametrize("whom", ["own", "a"])
@pytest.mark.parametrize("number", FAILING)
def test_each_message_of_a_reader_that_is_stopped_is_explained(crowd, whom, number):
    story = receive_and_fail(crowd, whom, number, lambda: crowd.go_on(1.5 * SWEEP))
    assert story.wrong() == []
    assert explained(story)


def test_a_message_may_come_twice_more_where_its_reader_died_as_it_was_stored_for_later(crowd):
    story = receive_and_fail(crowd, "a", 6, "crash_after")
    twice = [place for place, (again, _) in explained(story).items() if again == 2]
    assert len(twice) == 1
    assert story.explained(twice[0]) == {"killed": 1, "killed as it failed it": 1}


def test_a_message_that_comes_again_for_no_reason_is_wrong(crowd):
    publisher = crowd.process()
    publisher.publishing.published("-", ["p"], publisher.queue.publish_many)
    crowd.go_on(SWEEP)
    crowd.group.log.write("handled", "a", [("p", "id.p")])
    crowd.group.log.write("handled", "a", [("p", "id.p")])
    assert "came 2 times: {}" in crowd.story().wrong()[-1]


@pytest.mark.parametrize("what", ["crash_after", "stopped"])
@pytest.mark.parametrize("number", [16, 26])
def test_a_message_that_a_leader_was_moving_as_it_was_killed_or_stopped_is_explained(crowd, number, what):
    publisher, reader, leader = crowd.process(), crowd.process("a", fails=1), crowd.process()
    publisher.publishing.published("-", publisher.publishing.names(3), publisher.queue.publish_many)
    reader.at(8, "crash_before")
    reader.until_dead(reader.handling.step)
    leader.lead()
    crowd.clock.advance(1.1 * SWEEP)
    leader.at(number, "crash_after" if what == "crash_after" else lambda: crowd.go_on(1.2 * SWEEP))
    leader.until_dead(leader.lead)
    crowd.go_on(4 * SWEEP)
    story = crowd.story()
    assert story.wrong() == []
    assert any("a leader killed or slow" in story.explained(place) for place in explained(story))


def test_a_reader_that_was_stopped_while_it_waited_for_a_slot_may_take_a_message_that_is_being_moved(crowd):
    publisher, keyed, waits = crowd.process(), crowd.process(), crowd.process("a")
    crowd.leader.lead()
    publisher.publishing.published("-", ["p"], publisher.queue.publish_many)
    keyed.at(4, waits.handling.step)  # it gets one message, and has claimed the slot of the other
    keyed.publish("key.1")
    assert waits.handling.view.awaits()
    crowd.own.handling.step()
    for _ in range(5):
        crowd.leader.lead()
        crowd.clock.advance(0.245 * SWEEP)
    crowd.leader.at(16, waits.handling.step)  # the sweep has taken it, and has not removed it
    crowd.go_on(4 * SWEEP)
    story = crowd.story()
    assert story.wrong() == []
    assert [again for again, _ in explained(story).values()] == [1], "the message came twice"


def claimed_in_vain(crowd):
    """A reader of the group is killed between its claim and its stamp."""
    reader = crowd.process("a")
    reader.at(3, "crash_after")
    reader.until_dead(reader.handling.step)


def test_a_message_with_a_key_may_be_published_again_where_several_were_at_work_on_it(crowd):
    first, other = crowd.process(), crowd.process()
    crowd.leader.lead()
    crowd.clock.advance(1.1 * SWEEP)

    def meanwhile():
        claimed_in_vain(crowd)
        crowd.own.handling.step()
        crowd.leader.lead()
        other.at(16, "crash_after")  # after it has given the message another slot
        other.until_dead(lambda: other.publish("key.1"))

    first.at(5, meanwhile)
    first.publish("key.1")
    crowd.go_on(4 * SWEEP)
    story = crowd.story()
    assert story.wrong() == []
    assert [story.explained(place) for place in explained(story)] == [{AGAIN: 1}] * 2


def test_a_follow_up_may_be_published_again_where_several_were_at_work_on_it(crowd):
    publisher, ends = crowd.process(), crowd.process()
    sweeper = Sweeper(crowd.leader.registry, crowd.leader.election, parallelism=1)
    batch = publisher.queue.batch("b", then=Publish(follow_up("b")))
    publisher.log.write("made", "b", [("-", "-")])
    publisher.publishing.published("b", ["p"], batch.publish_many)
    batch.close()
    crowd.group.handling.step()
    sweeper.run_once()
    crowd.clock.advance(1.1 * SWEEP)

    def meanwhile():
        claimed_in_vain(crowd)
        crowd.own.handling.step()
        crowd.leader.log.write("moving", "-", [("-", "-")])
        sweeper.run_once()
        crowd.leader.log.write("moved", "-", [("-", "-")])
        publisher.queue.batch("b").close()

    ends.at(16, meanwhile)
    ends.handling.step()
    crowd.go_on(4 * SWEEP)
    story = crowd.story()
    assert story.wrong() == []
    assert [story.explained(place) for place in explained(story)] == [{AGAIN: 1}] * 2
