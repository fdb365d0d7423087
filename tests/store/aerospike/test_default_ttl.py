"""Records that are made without a time to live, in a namespace whose default-ttl would let them expire."""

from __future__ import annotations

import pytest
from msgspec import structs

from latchwork.coord import FencedLock
from latchwork.errors import AlreadyExists, NotFound, OutcomeUnknown, Refused, Unavailable
from latchwork.store import KEEP, NEVER, Add, Bin, Exists, Key, MemoryStore, Once, Param, Put, Read, Update
from latchwork.store.aerospike.default_ttl import update_or_create, update_or_create_many
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.contract.once import OnceContract
from latchwork.store.model.form import Form
from tests.support.real_servers import or_skip
from tools import servers

ONCE = Once(8, result=Bin("n"))
ADDED = Form(Add("n", Param("by")), Read("n"), exists=Exists.ANY)
KEY, OTHER = Key("default-ttl", "k"), Key("default-ttl", "o")
ANY = Update(KEY, (Add("n", 1), Read("n")), exists=Exists.ANY)


@pytest.fixture(scope="module")
def aged():
    """A store on a server whose namespace lets records expire after 50 seconds unless they say otherwise."""
    server = servers.Asd()
    server.config.write_text(server.config.read_text().replace("default-ttl 0", "default-ttl 50"))
    with or_skip():
        servers.started(server)
    yield AerospikeStore.from_url(server.url)
    server.close()


WAYS = {
    "create": lambda store, key: store.operate(key, Add("n", 1), exists=Exists.CREATE),
    "any": lambda store, key: store.operate(key, Add("n", 1), exists=Exists.ANY),
    "guarded": lambda store, key: store.operate(
        key, Add("n", 1), when=Bin("n") >= 1, exists=Exists.ANY, or_absent=True
    ),
    "once": lambda store, key: store.operate(key, Add("n", 1), exists=Exists.ANY, once=ONCE),
    "form": lambda store, key: store.repeat(ADDED.fill(key, by=1)),
    "create row": lambda store, key: store.operate_many([Update(key, (Add("n", 1),), exists=Exists.CREATE)]),
    "any row": lambda store, key: store.operate_many([Update(key, (Add("n", 1),), exists=Exists.ANY)]),
    "form row": lambda store, key: store.operate_many([ADDED.fill(key, by=1)]),
    "fenced": lambda store, key: FencedLock(store, "ttl").acquire(timeout=5).operate(key, Add("n", 1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_is_made_without_a_time_to_live_never_expires(aged, way):
    key = Key("default-ttl", way)
    WAYS[way](aged, key)
    aged.operate(key, Add("n", 1))
    record = aged.get(key)
    assert (record.bins["n"], record.ttl) == (2, NEVER)


def test_a_write_that_finds_the_record_leaves_its_time_to_live_as_it_is(aged):
    for key in (KEY, OTHER):
        aged.operate(key, Put("n", 1), exists=Exists.ANY, ttl=20)
    assert aged.operate(KEY, Add("n", 1), Read("n"), exists=Exists.ANY) == (2,)
    assert aged.operate_many([structs.replace(ANY, key=OTHER), Update(KEY, (Read("n"),))]) == [(2,), (2,)]
    assert all(0 < aged.get(key).ttl <= 20 for key in (KEY, OTHER))


def test_a_guard_that_does_not_hold_refuses_the_write_as_ever(aged):
    aged.operate(Key("default-ttl", "guard"), Put("n", 1), exists=Exists.CREATE)
    with pytest.raises(Refused):
        aged.operate(Key("default-ttl", "guard"), Add("n", 1), when=Bin("n").eq(7), exists=Exists.ANY, or_absent=True)


class TestOnce(OnceContract):
    """Exactly once holds where a write is sent as two."""

    @pytest.fixture
    def store(self, aged):
        return aged


# ---- what is sent, without a server


class Server:
    """A server that does what is told before each attempt, and keeps what it was sent."""

    def __init__(self, *before) -> None:
        self.store, self.before, self.sent, self.batches = MemoryStore(), list(before), [], []

    def send(self, update):
        self.sent.append((update.exists, update.ttl))
        self.before.pop(0)(self.store) if self.before else None
        return self.store._operate(update)

    def send_many(self, updates):
        self.batches.append([(update.exists, update.ttl) for update in updates])
        self.before.pop(0)(self.store) if self.before else None
        return self.store._operate_many(updates)


def nothing(store):
    pass


def made(store):
    store.operate(KEY, Put("n", 10), exists=Exists.CREATE)


def gone(store):
    store.delete(KEY)


def lost(store):
    raise OutcomeUnknown("lost")


def down(store):
    raise Unavailable("down")


UPDATED, CREATED = (Exists.UPDATE, KEEP), (Exists.CREATE, NEVER)


@pytest.mark.parametrize(
    ("before", "value", "sent"),
    [
        ((made,), 11, [UPDATED]),
        ((), 1, [UPDATED, CREATED]),
        ((nothing, made), 11, [UPDATED, CREATED, UPDATED]),
    ],
    ids=["there", "absent", "made between"],
)
def test_a_write_that_may_make_the_record_is_an_update_and_then_a_create(before, value, sent):
    server = Server(*before)
    assert update_or_create(ANY, server.send) == (value,)
    assert server.sent == sent
    server = Server(*before)
    assert update_or_create_many([ANY], server.send_many) == [(value,)]
    assert server.batches == [[one] for one in sent]


def test_a_record_that_comes_and_goes_between_the_attempts_may_be_tried_again():
    before = (nothing, made, gone)
    with pytest.raises(Unavailable):
        update_or_create(ANY, Server(*before).send)
    (row,) = update_or_create_many([ANY], Server(*before).send_many)
    assert isinstance(row, Unavailable)


@pytest.mark.parametrize("before", [(lost,), (nothing, lost)], ids=["update", "create"])
def test_an_attempt_in_doubt_ends_the_write(before):
    server = Server(*before)
    with pytest.raises(OutcomeUnknown):
        update_or_create(ANY, server.send)
    assert len(server.sent) == len(before)


def test_a_batch_that_fails_at_its_second_step_keeps_what_the_first_has_done():
    server = Server(nothing, down)
    server.store.operate(OTHER, Put("n", 10), exists=Exists.CREATE)
    rows = update_or_create_many([structs.replace(ANY, key=OTHER), ANY], server.send_many)
    assert rows[0] == (11,)
    assert isinstance(rows[1], Unavailable)


def test_rows_that_say_what_they_expect_are_sent_once_as_they_are():
    server = Server(made, down)
    rows = update_or_create_many(
        [structs.replace(ANY, exists=Exists.CREATE), structs.replace(ANY, key=OTHER, exists=Exists.UPDATE)],
        server.send_many,
    )
    assert [type(row) for row in rows] == [AlreadyExists, NotFound]
