"""A candidate's place in the line of ZooKeeper, on a client of which the test says when its session ends."""

from __future__ import annotations

import pytest

from latchwork.coord.election.znodes import CandidateNode
from latchwork.errors import Refused, Unavailable
from latchwork.testing.clock import ManualClock
from tests.support.zoo import Client, Zoo

PATH = "/elections/office"


@pytest.fixture
def zoo():
    return Zoo()


@pytest.fixture
def enter(zoo):
    """A candidate's client, and its line."""
    clock = ManualClock()

    def make(session, candidate):
        client = Client(zoo, session)
        return client, CandidateNode(client, PATH, candidate, clock, 1)

    return make


def session_ends(client, new):
    client.zoo.expire(client.session)
    client.session = new


def test_a_node_that_was_made_in_a_later_session_than_it_was_meant_for_blocks_nobody(zoo, enter):
    client, line = enter(1, "a")
    client.before_create = lambda: session_ends(client, 2)
    with pytest.raises(Unavailable, match="it is entered again"):
        line.predecessor()
    assert line.predecessor() is None
    assert len(zoo.nodes) == 1
    _, other = enter(3, "b")
    assert other.predecessor() in zoo.nodes
    line.leave()
    assert other.predecessor() is None


def test_leaving_takes_a_node_along_that_was_made_too_late(zoo, enter):
    client, line = enter(1, "a")
    client.before_create = lambda: session_ends(client, 2)
    with pytest.raises(Unavailable):
        line.predecessor()
    line.leave()
    assert zoo.nodes == {}


def test_the_node_of_an_earlier_session_is_no_place_in_the_line(zoo, enter):
    client, line = enter(1, "a")
    assert line.predecessor() is None
    client.session = 2
    with pytest.raises(Refused, match="not the first"):
        line.confirm()
    assert line.predecessor() is None
    assert set(zoo.nodes.values()) == {2}


def test_nodes_of_others_are_left_alone(zoo, enter):
    _, first = enter(1, "a")
    client, second = enter(2, "b")
    assert first.predecessor() is None
    assert second.predecessor() is not None
    session_ends(client, 4)
    assert second.predecessor() is not None
    second.leave()
    first.confirm()
    assert set(zoo.nodes.values()) == {1}


def test_a_place_that_is_left_without_a_connection_goes_with_the_next_one(zoo, enter):
    client, line = enter(1, "a")
    line.predecessor()
    client.cut()
    line.leave()
    assert len(zoo.nodes) == 1
    client.back()
    assert zoo.nodes == {}
    assert client.listeners == set()


@pytest.mark.parametrize("drops_late", [False, True])
def test_a_place_that_is_left_goes_however_often_the_connection_is_lost_meanwhile(zoo, enter, drops_late):
    client, line = enter(1, "a")
    client.drops_late = drops_late
    line.predecessor()
    client.cut()
    line.leave()
    client.cut_once_more()
    client.cut_once_more()
    assert len(zoo.nodes) == 1
    client.back()
    assert zoo.nodes == {}
    assert client.listeners == set()


def test_a_place_that_is_left_goes_with_its_session_and_nothing_more_is_heard(zoo, enter):
    client, line = enter(1, "a")
    line.predecessor()
    client.cut()
    line.leave()
    client.cut_once_more()
    assert len(client.listeners) == 1
    client.lose()
    assert zoo.nodes == {}
    assert client.listeners == set()


def test_who_ends_one_stay_late_does_not_end_the_next_one(zoo, enter):
    _, line = enter(1, "a")
    line.predecessor()
    first = line.stay
    line.leave(first)
    assert zoo.nodes == {}
    line.predecessor()
    line.leave(first)
    line.confirm()
    line.leave()
    assert zoo.nodes == {}


def test_who_leaves_and_stands_again_stands_at_the_end(zoo, enter):
    _, first = enter(1, "a")
    _, second = enter(2, "b")
    first.predecessor()
    second.predecessor()
    first.leave()
    assert first.predecessor() is not None
    second.confirm()
