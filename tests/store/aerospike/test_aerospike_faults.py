"""Requests and replies lost on the way to a real server: what was written, and what the caller is told."""

from __future__ import annotations

import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown, Refused, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, Once, Put, Read, Removal, Update
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.proxy import Fault
from tools import servers

KEY = Key("faults", "r")
OTHER = Key("faults", "s")
LOST = [Fault.DROP_REQUEST, Fault.CUT_BEFORE]
APPLIED = [Fault.DROP_REPLY, Fault.CUT_AFTER]
ONE_TRY = RetryPolicy(attempts=1)
AT_ONCE = RetryPolicy(attempts=20, wait=0.0, max_wait=0.0)  # a busy machine may not answer several in time


@pytest.fixture
def store(aerospike_store, aerospike_proxy):
    """A store that reaches the server through the proxy, and tries once; both records are there with n = 0."""
    for key in (KEY, OTHER):
        aerospike_store.operate(key, Put("n", 0), exists=Exists.ANY)
    through = AerospikeStore.from_url(aerospike_proxy.url)
    through.with_policy(AT_ONCE).get(KEY)  # connects, which on a busy machine may need more than one try
    yield through.with_policy(ONE_TRY)
    through.close()


def n(store, key=KEY):
    record = store.get(key)
    return record and record.bins["n"]


def release(proxy):
    servers.until(proxy.release, timeout=10)


def arrived(proxy, fault, count=1):
    """Wait until the proxy has done what its script says: on a busy machine the client may give up before."""
    servers.until(lambda: proxy.fired[fault] == count and proxy.swallowed >= count * (fault in APPLIED), timeout=10)


@pytest.mark.parametrize("fault", [*LOST, *APPLIED])
def test_a_write_whose_reply_does_not_come_is_unknown(store, aerospike_store, aerospike_proxy, fault):
    aerospike_proxy.script.append(fault)
    with pytest.raises(OutcomeUnknown):
        store.operate(KEY, Add("n", 1))
    arrived(aerospike_proxy, fault)
    assert n(aerospike_store) == (fault in APPLIED)


@pytest.mark.parametrize("fault", [*LOST, *APPLIED])
def test_a_delete_whose_reply_does_not_come_is_unknown(store, aerospike_store, aerospike_proxy, fault):
    aerospike_proxy.script.append(fault)
    with pytest.raises(OutcomeUnknown):
        store.delete(KEY)
    arrived(aerospike_proxy, fault)
    assert (n(aerospike_store) is None) == (fault in APPLIED)


@pytest.mark.parametrize("fault", [*LOST, *APPLIED])
def test_the_rows_of_a_lost_batch_are_unknown_one_by_one(store, aerospike_store, aerospike_proxy, fault):
    aerospike_proxy.script.extend([fault, fault])
    rows = store.operate_many([Update(key, (Add("n", 1), Read("n"))) for key in (KEY, OTHER)])
    removed = store.delete_many([Removal(KEY, Bin("n") > 5), Removal(OTHER, Bin("n") > 5)])
    assert [type(row) for row in [*rows, *removed]] == [OutcomeUnknown] * 4
    arrived(aerospike_proxy, fault, 2)
    assert [n(aerospike_store, key) for key in (KEY, OTHER)] == [int(fault in APPLIED)] * 2


@pytest.mark.parametrize("fault", [*LOST, *APPLIED])
def test_a_store_of_one_connection_goes_on_at_once_after_losing_it(aerospike_store, aerospike_proxy, fault):
    aerospike_store.operate(KEY, Put("n", 0), exists=Exists.ANY)
    through = AerospikeStore.from_url(f"{aerospike_proxy.url}&connections=1").with_policy(AT_ONCE)
    assert n(through) == 0
    aerospike_proxy.script.append(fault)
    with pytest.raises(Unavailable):
        n(through.with_policy(ONE_TRY))
    assert [n(through) for _ in range(3)] == [0, 0, 0]  # if the lost one still counted, all tries would fail at once
    through.close()


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_reads_that_are_lost_are_tried_again(store, aerospike_proxy, fault):
    asked = [
        lambda: store.get(KEY).bins["n"],
        lambda: store.get_many([KEY, OTHER])[1].bins["n"],
        lambda: store.operate(KEY, Read("n"))[0],
        lambda: store.operate_many([Update(KEY, (Read("n"),)), Update(OTHER, (Read("n"),))])[1][0],
    ]
    store = store.with_policy(AT_ONCE)
    for ask in asked:
        aerospike_proxy.script.append(fault)
        assert ask() == 0
    assert aerospike_proxy.fired[fault] == len(asked)


@pytest.mark.parametrize("fault", [*LOST, *APPLIED])
def test_once_is_exactly_once_whatever_is_lost(store, aerospike_store, aerospike_proxy, fault):
    store = store.with_policy(AT_ONCE)
    once = Once(8, result=Bin("n"))
    for number in range(1, 3):
        aerospike_proxy.script.append(fault)
        assert store.operate(KEY, Add("n", 1), once=once) == (number,)
    assert n(aerospike_store) == 2


def test_a_write_that_lands_late_was_unknown_and_is_applied(store, aerospike_store, aerospike_proxy):
    aerospike_proxy.script.append(Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        store.operate(KEY, Add("n", 1))
    assert n(aerospike_store) == 0
    release(aerospike_proxy)
    assert n(aerospike_store) == 1


def test_a_first_attempt_of_once_that_lands_late_changes_nothing(store, aerospike_store, aerospike_proxy):
    aerospike_proxy.script.append(Fault.LATE)
    assert store.with_policy(AT_ONCE).operate(KEY, Add("n", 1), once=Once(8, result=Bin("n"))) == (1,)
    release(aerospike_proxy)
    assert n(aerospike_store) == 1


def test_a_refusal_after_doubt_stays_refused_when_the_first_attempt_lands_late(store, aerospike_store, aerospike_proxy):
    aerospike_proxy.script.append(Fault.LATE)
    with pytest.raises(Refused):
        store.with_policy(AT_ONCE).operate(KEY, Add("n", 10), when=Bin("n") > 0, once=Once(8, result=Bin("n")))
    aerospike_store.operate(KEY, Put("n", 1))  # now its guard would hold
    release(aerospike_proxy)
    assert n(aerospike_store) == 1


def test_a_server_that_is_away_never_counts_as_an_absent_record(store, aerospike_proxy):
    aerospike_proxy.close()
    for ask in (
        lambda: store.get(KEY),
        lambda: store.get_many([KEY]),
        lambda: store.delete(KEY),
        lambda: store.operate(KEY, Read("n")),
    ):
        with pytest.raises((Unavailable, OutcomeUnknown)):
            ask()
    (row,) = store.operate_many([Update(KEY, (Add("n", 1),))])
    assert isinstance(row, Unavailable | OutcomeUnknown)
    assert isinstance(row, LatchworkError)
