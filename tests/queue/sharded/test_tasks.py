"""Functions as tasks: what is published fits the workers that run, or is refused before it is stored (P29)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from functools import partial

import msgspec
import pytest

from latchwork.errors import InvalidMessageHandler, InvalidRequest, NotFound
from latchwork.queue import BatchingConfig, Delivery, QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.tasks.signature import (
    MAX_SIGNATURE,
    SIGNATURES,
    Signature,
    StoredSignature,
    report,
    signatures_of,
)
from latchwork.queue.sharded.workers import REPORT, SILENT
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing import ManualClock
from latchwork.testing.stores import CountingStore
from tests.sim.stage import Stage
from tests.support.waiting import until


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: int
    n: int = 1


class Address(msgspec.Struct):
    name: str
    lines: list[Line] = []


class ChangedLine(msgspec.Struct):
    sku: str
    n: int = 1
    colour: str = ""


def takes(kind):
    """Return a function that takes this."""

    def send(to): ...

    send.__annotations__ = {"to": kind}
    return send


class ChangedAddress(msgspec.Struct):
    name: str
    lines: list[ChangedLine] = []


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


def worker_of(store, **settings):
    """A worker of another process, and the queue that its task has."""
    registry = QueueRegistry(store, "shop")
    registry.create(QueueConfig("mails", shards=1, **settings))
    return Worker(registry, upkeep=False)


def task_of(store, function, **options):
    return worker_of(store).task("mails", **options)(function)


def runs(task):
    """A worker with this task runs now: what it does before its consumers start."""
    queue = task._registry.get("mails")
    report(queue, task.stored_signature)
    return task


def send(to: str, subject: str, *, urgent: bool = False) -> None:
    raise NotImplementedError


# ---- arguments and payload


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (("ada",), {}, "missing a required argument: 'subject'"),
        (("ada", "hi", True), {}, "too many positional"),
        (("ada", "hi"), {"delay": 60}, "unexpected keyword argument 'delay'"),
        (("ada", 7), {}, "Expected `str`, got `int`"),
        (("ada", "hi"), {"urgent": None}, "Expected `bool`, got `null`"),
        ((object(), "hi"), {}, "is not JSON"),
        (("ada", "\ud800"), {}, "is not JSON"),
    ],
)
def test_a_call_that_the_function_would_not_take_is_refused_with_nothing_stored(store, args, kwargs, said):
    task = task_of(store, send)
    store.reset()
    with pytest.raises(InvalidRequest, match=said.replace("(", r"\(")):
        task.publish(*args, **kwargs)
    assert store.total == 0


def test_a_parameter_may_have_any_name(store):
    seen = []

    def f(*, self: int, args: int, kwargs: int, function: int, message_id: str) -> None:
        seen.append((self, args, kwargs, function, message_id))

    task = task_of(store, f)
    given = {"self": 1, "args": 2, "kwargs": 3, "function": 4, "message_id": "5"}
    assert task.payload(**given) == given
    task.publish(**given)
    task.options(delay=0).publish(**given)
    for delivery in task._registry.get("mails").receive(2, timeout=0):
        task.handle(delivery)
    assert seen == [(1, 2, 3, 4, "5")] * 2


def test_the_payload_has_what_was_given_by_name_and_the_worker_gets_it_in_its_own_types(store):
    seen = []

    def place(
        delivery: Delivery,
        to: Address,
        on: date,
        colour: Colour,
        tags: set[str],
        *,
        note: str | None = None,
        n: int = 7,
    ) -> None:
        seen.append((delivery.attempts, to, on, colour, tags, note, n))

    task = task_of(store, place)
    task.options(key="ada").publish(Address("Ada", [Line(7)]), date(2026, 1, 2), Colour.RED, tags={"a"}, n=8)
    (delivery,) = task._registry.get("mails").receive()
    assert delivery.payload == {
        "to": {"name": "Ada", "lines": [{"sku": 7, "n": 1}]}, "on": "2026-01-02", "colour": "red", "tags": ["a"],
        "n": 8,
    }  # fmt: skip
    task.handle(delivery)
    assert seen == [(1, Address("Ada", [Line(7)]), date(2026, 1, 2), Colour.RED, {"a"}, None, 8)]


def test_a_model_of_pydantic_is_a_parameter_as_any_other(store):
    pydantic = pytest.importorskip("pydantic")

    class Part(pydantic.BaseModel):
        n: int = 1

    class Order(pydantic.BaseModel):
        sku: str
        part: Part

    seen = []

    def order(one: Order) -> None:
        seen.append(one)

    order.__annotations__["one"] = Order
    task = task_of(store, order)
    assert task.payload(Order(sku="7", part=Part(n=2))) == {"one": {"sku": "7", "part": {"n": 2}}}
    task.publish(Order(sku="7", part=Part()))
    task.handle(task._registry.get("mails").receive()[0])
    assert seen == [Order(sku="7", part=Part())]
    assert {path: part.type for path, part in task._signature.parts.items()} == {
        "one": "object", "one.sku": "string", "one.part": "object", "one.part.n": "integer",
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="order"):
        task.publish({"sku": "7"})


def test_a_task_is_not_called_and_the_function_itself_is_there(store):
    task = task_of(store, send)
    with pytest.raises(TypeError, match="not callable"):
        task("ada", "hi")
    with pytest.raises(NotImplementedError):
        task.function("ada", "hi")


def everything(*args: int) -> None: ...
def named(**kwargs: int) -> None: ...
def by_place(a: int, /) -> None: ...
def unreadable(a: MemoryStore) -> None: ...
def unknown(a: Nowhere) -> None: ...  # noqa: F821 - as a name that only the type checker imports
def cut_off(a: "list[int") -> None: ...  # noqa: F722 - a mistake in the text
def not_there(a: msgspec.Nothing) -> None: ...
def no_type(a: 5 + int) -> None: ...
async def awaited(a: int) -> None: ...


@pytest.mark.parametrize(
    "function", [everything, named, by_place, unreadable, unknown, cut_off, not_there, no_type, int]
)
def test_a_function_whose_parameters_are_no_fields_is_refused_where_it_is_decorated(store, function):
    with pytest.raises(InvalidRequest, match=function.__name__):
        task_of(store, function)


class Called:
    def __call__(self, n: int) -> None:
        """A task that is an object."""


@pytest.mark.parametrize("function", [Called(), partial(Called(), n=2), partial(Called().__call__, n=2)])
def test_an_object_and_a_function_with_some_arguments_given_are_tasks(store, function):
    task = task_of(store, function)
    assert task.payload(n=3) == {"n": 3}
    with pytest.raises(InvalidRequest, match=r"__call__\(.*n: int.*Expected `int`, got `str`"):
        task.payload(n="3")


def test_what_cannot_be_a_task_is_refused_in_words(store):
    with pytest.raises(InvalidMessageHandler, match="async"):
        task_of(store, awaited)
    with pytest.raises(InvalidRequest, match="upcast is a str"):
        task_of(store, send, upcast="x")
    with pytest.raises(InvalidRequest, match="batching: a task takes one JSON message"):
        worker_of(MemoryStore(), batching=BatchingConfig(2, 1)).task("mails")(send).publish("ada", "hi")
    with pytest.raises(NotFound):
        Worker(QueueRegistry(store, "other")).task("mails")(send).publish("ada", "hi")
    many = type("Many", (msgspec.Struct,), {"__annotations__": {f"a_rather_long_name_{n}": int for n in range(600)}})

    def big(a: int) -> None: ...

    big.__annotations__["a"] = many
    with pytest.raises(InvalidRequest, match=f"{MAX_SIGNATURE} are stored"):
        _ = task_of(MemoryStore(), big).stored_signature


# ---- programs of two versions


def with_priority(to: str, subject: str, *, urgent: bool = False, priority: int = 0) -> None: ...
def needs_priority(to: str, subject: str, priority: int) -> None: ...
def other_type(to: str, subject: int) -> None: ...
def fewer(to: str) -> None: ...


@pytest.mark.parametrize(
    ("theirs", "ours", "given", "said"),
    [
        (send, with_priority, {"priority": 3}, "it does not know priority (integer)"),
        (send, with_priority, {}, None),
        (with_priority, send, {"urgent": True}, None),
        (needs_priority, send, {}, "it needs priority (integer), which is not given"),
        (other_type, send, {}, "subject is integer there, and string here"),
        (fewer, send, {}, "it does not know subject (string)"),
    ],
)
def test_a_call_that_a_worker_which_runs_would_not_understand_is_refused_with_the_difference(
    store, theirs, ours, given, said
):
    runs(task_of(store, theirs, upcast=None))
    task = task_of(store, ours)
    if said is None:
        task.publish("ada", "hi", **given)
        return
    with pytest.raises(InvalidRequest) as refused:
        task.publish("ada", "hi", **given)
    assert said in str(refused.value)
    assert not task._registry.get("mails").depth().ready


def test_a_difference_within_a_type_is_named_by_its_path():
    def former(to: Address) -> None: ...

    def present(to: ChangedAddress) -> None: ...

    ours, theirs = Signature(present).parts, StoredSignature.read(Signature(former).stored(upcasts=False))
    assert theirs.difference({"to"}, ours) == "to.lines[].sku is integer there, and string here"
    assert (
        theirs.difference({"to"}, {**Signature(former).parts, "to.lines[].colour": ours["to.lines[].colour"]}) is None
    )


@pytest.mark.parametrize(
    ("former", "present", "path"),
    [
        (Line | None, ChangedLine | None, "to?.sku"),
        (list[Line | None], list[ChangedLine | None], "to[]?.sku"),
        (dict[str, Line], dict[str, ChangedLine], "to{}.sku"),
        (dict[str, int], dict[str, str], "to{}"),
    ],
)
def test_a_difference_within_a_map_or_a_type_that_may_be_none_is_named(former, present, path):
    ours, theirs = Signature(takes(present)), Signature(takes(former)).stored(upcasts=False)
    said = StoredSignature.read(theirs).difference({"to"}, ours.parts)
    assert said == f"{path} is integer there, and string here"
    assert StoredSignature.read(theirs).difference({"to"}, Signature(takes(former)).parts) is None


class Point(msgspec.Struct, frozen=True):
    x: int


class PlacedLine(msgspec.Struct):
    sku: int
    n: int = 1
    at: Point | None = None
    way: list[Point] = []
    names: dict[str, Point] = {}
    around: Point = Point(0)


def test_what_a_part_that_may_be_left_out_needs_is_not_needed_by_a_program_that_leaves_it_out():
    former, present = Signature(takes(Line)), Signature(takes(PlacedLine))
    worker = StoredSignature.read(present.stored(upcasts=False))
    assert worker.difference({"to"}, former.parts) is None
    present.arguments({"to": {"sku": 7}})  # it reads what it did not refuse
    assert StoredSignature.read(former.stored(upcasts=False)).difference({"to"}, present.parts) is None


class Tree(msgspec.Struct):
    one: Tree | None = None
    two: Tree | None = None
    three: Tree | None = None
    four: dict[str, Tree] = {}
    sku: str = ""


def test_a_type_with_more_within_its_maps_than_can_be_stored_is_compared_without_that():
    tree = Signature(takes(Tree))
    text = tree.stored(upcasts=False)
    assert len(text) < 300
    assert StoredSignature.read(text).difference({"to"}, tree.parts) is None


def test_every_worker_counts_until_it_has_been_silent_and_one_that_upcasts_never_objects(store, clock):
    publisher = task_of(store, with_priority)
    old, new = runs(task_of(store, send)), runs(task_of(store, with_priority))
    with pytest.raises(InvalidRequest, match="does not know priority"):
        publisher.publish("ada", "hi", priority=3)
    clock.advance(SILENT + 1)
    runs(new)
    publisher.publish("ada", "hi", priority=3)
    runs(task_of(store, fewer, upcast=lambda former: {"to": former["to"]}))
    clock.advance(20)
    publisher.publish("ada", "hi", priority=3)
    runs(old)
    clock.advance(20)
    with pytest.raises(InvalidRequest, match="Deploy the workers first"):
        publisher.publish("ada", "hi", priority=3)


def test_a_former_payload_is_read_by_the_upcast_and_another_fails_with_the_difference(store):
    seen = []

    def bill(amount: int, currency: str) -> None:
        seen.append((amount, currency))

    task = task_of(store, bill, upcast=lambda former: {"currency": "EUR", **former})
    queue = task._registry.get("mails")
    queue.publish_many([{"amount": 7}, {"amount": 8, "currency": "CHF"}, {"amount": "x"}, [1], {"amount": 9, "vat": 1}])
    told = []
    for delivery in queue.receive(10):
        try:
            task.handle(delivery)
        except InvalidRequest as failure:
            told.append(str(failure))
    assert seen == [(7, "EUR"), (8, "CHF")]
    assert [text[: text.index(":")] for text in told] == ["the message does not fit bill(amount"] * 3


def test_what_is_stored_and_is_no_signature_does_not_count(store):
    task = runs(task_of(store, send))
    queue = task._registry.get("mails")
    report(queue, "no JSON")
    report(queue, '{"name": "send", "parts": {"a": 7}, "upcasts": false}')
    task.publish("ada", "hi")


@pytest.mark.parametrize("stored", ["a text", 7, {f"{n}": [0, "x" * MAX_SIGNATURE] for n in range(63)}])
def test_a_record_that_is_damaged_or_full_of_former_programs_keeps_no_worker_from_its_start(store, stored):
    task = runs(task_of(store, send))
    queue = task._registry.get("mails")
    store.operate(Key("shop_meta_set", "mails_TASK"), Put(SIGNATURES, stored))

    def changed(to: str) -> None: ...

    text = Signature(changed).stored(upcasts=False)
    report(queue, text + " " * (MAX_SIGNATURE - len(text)))
    assert [one.name for one in signatures_of(queue)] == ["changed"]
    report(queue, task.stored_signature)
    assert {one.name for one in signatures_of(queue)} == {"changed", "send"}


# ---- costs, and the worker itself


def test_it_costs_what_publish_costs_and_one_call_each_quarter_of_a_minute(store, clock):
    task = task_of(store, send)
    task.publish("ada", "hi")
    store.reset()
    for _ in range(10):
        task.publish("ada", "hi")
    assert store.total == 20
    clock.advance(15)
    task.publish("ada", "hi")
    assert store.total == 23


def test_a_worker_reports_before_it_takes_its_first_message():
    worker, seen = worker_of(MemoryStore()), []
    queue = worker.registry.get("mails")

    def look(to: str) -> None:
        seen.extend(one.name for one in signatures_of(queue))

    worker.task("mails", concurrency=1)(look).publish("ada")
    with worker:
        until(lambda: seen)
    assert seen == ["look"]


def test_a_worker_is_known_by_its_tasks_for_as_long_as_it_works_with_few_reports():
    stage = Stage()

    def process(store):
        worker = worker_of(store)
        queue = worker.registry.get("mails")
        worker.task("mails", concurrency=1)(send)
        with worker:
            store.seams.sleep(4 * SILENT)
            at_work = signatures_of(queue)
        reports = store.get(Key("shop_meta_set", "mails_TASK")).generation
        store.seams.sleep(SILENT + 1)
        return [one.name for one in at_work], signatures_of(queue), reports

    stage.act("worker", process)
    at_work, later, reports = stage.play().said["worker"]
    assert (at_work, later) == (["send"], [])
    assert reports <= 1 + 4 * SILENT / REPORT
