"""A candidate's place in the line of ZooKeeper, on a client of which the test says when its session ends."""

from __future__ import annotations

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler

from latchwork.coord.zookeeper import Line
from latchwork.errors import Refused, Unavailable
from tests.clock import ManualClock

PATH = "/elections/office"


class Zoo:
    """The nodes of one line, each with its session."""

    def __init__(self):
        self.nodes, self.made = {}, 0

    def expire(self, session):
        self.nodes = {node: owner for node, owner in self.nodes.items() if owner != session}


class Client:
    """As much of a kazoo client as a line needs. before_create: what happens before a create is sent."""

    handler = SequentialThreadingHandler()

    def __init__(self, zoo, session):
        self.zoo, self.session = zoo, session
        self.before_create = lambda: None

    @property
    def client_id(self):
        return (self.session, b"")

    def get_children_async(self, path):
        return self._answer(list(self.zoo.nodes))

    def create_async(self, path, data, **_):
        before, self.before_create = self.before_create, lambda: None
        before()
        self.zoo.nodes[f"{path.rpartition('/')[2]}{self.zoo.made:010}"] = self.session
        self.zoo.made += 1
        return self._answer(path)

    def delete_async(self, path):
        answer = self.handler.async_result()
        if self.zoo.nodes.pop(path.rpartition("/")[2], None) is None:
            answer.set_exception(NoNodeError())
        else:
            answer.set(True)
        return answer

    def _answer(self, value):
        answer = self.handler.async_result()
        answer.set(value)
        return answer


@pytest.fixture
def zoo():
    return Zoo()


@pytest.fixture
def enter(zoo):
    """A candidate's client, and its line."""
    clock = ManualClock()

    def make(session, candidate):
        client = Client(zoo, session)
        return client, Line(client, PATH, candidate, clock, 1)

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
