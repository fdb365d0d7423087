"""A form is checked when it is made; what each call puts in is checked by the contract (`contract_forms.py`)."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.store import (
    Add,
    Bin,
    Exists,
    Key,
    ListAppend,
    MapPut,
    MapRemove,
    MapTrim,
    MemoryStore,
    Once,
    Param,
    Put,
    Read,
    ReadAll,
    exists,
    has,
    missing,
)
from latchwork.store.aerospike.expr import template_of
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.local.evaluate import closure_of
from latchwork.store.model.expr import If, ListOf, MapSize, MapValue, smallest
from latchwork.store.model.form import Form, _bins
from latchwork.store.model.ops import Compute, Touch
from latchwork.testing.clock import ManualClock

N = Param("n")


@pytest.mark.parametrize(
    "make",
    [
        Form,
        lambda: Form(Put("a-name-that-is-too-long", 1)),
        lambda: Form(Put("n", N), when=Bin("n") < N, exists=Exists.CREATE),
        lambda: Form(Put("n", N), ttl=0),
        lambda: Form("put"),
        lambda: Form(ReadAll(), Put("n", N)),
        lambda: Form(Put("n", N), when=(Bin("n") < N).bind(n=1)),
        lambda: Form(Put("n", (Bin("n") + N).bind(n=1))),
        lambda: Form(Put("n", N), once=Once(8, result=(Bin("n") + N).bind(n=1))),
        lambda: Form(ListAppend("l", Bin("n") + N)),
        lambda: Form(MapTrim("m", N)),
        lambda: Form(MapRemove("m", (N,))),
    ],
)
def test_a_form_that_no_store_takes_cannot_be_made(make):
    with pytest.raises(InvalidRequest):
        make()


@pytest.mark.parametrize(
    ("ops", "when", "bins"),
    [
        ((Add("n", N), Read("read"), Touch()), None, {"n", "read"}),
        (
            (Put("n", If(exists("a"), MapValue("b", Bin("c", str)), smallest(Bin("d"), N))),),
            None,
            set("nabcd"),
        ),
        ((MapPut("m", Bin("key"), ListOf((Bin("e"), N))),), None, {"m", "key", "e"}),
        ((Compute(MapSize("sized")),), ~(has("f", N) & (missing("g") | (Bin("h") < N))), {"sized", *"fgh"}),
        ((Put("n", N), ReadAll()), Bin("n") < N, set()),
    ],
)
def test_a_form_knows_every_bin_that_it_looks_at_or_changes(ops, when, bins):
    assert Form(*ops, when=when).bins == bins


@pytest.mark.parametrize("keep", [closure_of, template_of])
def test_an_expression_may_be_used_for_the_first_time_while_another_thread_makes_a_form_of_it(keep):
    guard = (Bin("a") < N) & (Bin("b") < N)
    walk = _bins((guard,))
    found = [next(walk)]
    keep(guard)  # what a store does in another thread, which the walk must not meet
    assert {*found, *walk} == {"a", "b"}


class Client:
    """Takes every update, and keeps what it was given."""

    def __init__(self) -> None:
        self.given = []

    def operate_ordered(self, key, ops, meta, policy):
        self.given.append((key, ops, policy))
        return key, {}, [(op["bin"], 1) for op in ops]


def test_a_parameter_without_a_value_is_named_whether_the_record_is_there_or_not():
    form = Form(Add("n", N), Put("m", Param("other")))
    for given, lacks in (({}, "n"), ({"n": 1}, "other"), ({"other": 1}, "n")):
        with pytest.raises(InvalidRequest, match=f"the parameter '{lacks}' has no value"):
            MemoryStore().repeat(form.fill(Key("s", "absent"), **given))


def test_a_form_is_sent_as_the_update_would_be():
    """Whatever the backend keeps ready for a form, the client gets what it would get for the plain update."""
    client = Client()
    store = AerospikeStore(client, "test", seams=ManualClock())
    guard, once = Bin("n") < N, Once(8, answer="n")
    store.token_clock.learn(store.seams, 0)  # or it would ask for the server's time
    for given in ({}, {"once": once}):
        form = Form(Add("n", N), when=guard, **given)
        update = form.fill(Key("s", "k"), n=5)
        (store.once if given else store.repeat)(update)
        store.operate(Key("s", "k"), Add("n", 5), when=guard.bind(n=5), **given)
        filled, plain = (_without_token(sent) for sent in client.given[-2:])
        assert filled == plain


def _without_token(sent):
    return repr([_scrubbed(part) for part in sent])


def _scrubbed(part):
    if isinstance(part, bytes):
        return "token"
    if isinstance(part, dict):
        return {name: _scrubbed(value) for name, value in part.items()}
    return [_scrubbed(item) for item in part] if isinstance(part, list | tuple) else part
