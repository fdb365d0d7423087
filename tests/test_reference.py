"""The API reference is whole: a reader of it meets no class that it does not explain."""

from __future__ import annotations

import pytest

pytest.importorskip("griffe")
pytest.importorskip("yaml")

from tests.reference import PACKAGES, SHARING, docstring, documented, is_value, load, public, returned, target

UNEXPLAINED = {
    "latchwork.queue.sharded.envelope.Codec": "a setting of the queue is its name, and nobody calls it",
    "latchwork.queue.sharded.delivery.Source": "a delivery settles itself through it",
    "latchwork.coord.effects.marks.Applied": "`Delivery.operate` returns what is in it",
    "latchwork.queue.sharded.slots.Stamped": "a delivery shows what is in it by properties of its own",
    "latchwork.store.model.expr.Bound": "made by `Once.result` and by the backends",
    "latchwork.queue.sharded.tasks.task.TaskDecorator": "stands behind an @ alone, which `Worker.task` explains",
    "latchwork.aio.task.TaskDecorator": "as above",
    "latchwork.spark.batches.OncePerBatch": "stands in a `with` statement alone, which `once_per_batch` explains",
}
"""Classes that a reader needs not know, with the reason."""

UNSHARED = {
    "latchwork.queue.circular.groups.Batch": "a list, as one read returned it",
    "latchwork.seams.Seams": "the clocks of the machine",
    "latchwork.store.contract.StoreContract": "a class of tests",
    "latchwork.store.rows.Rows": "a list, as one call returned it",
    "latchwork.testing.stores.Call": "an entry of a history",
    "latchwork.testing.stores.Outage": "the plan of a store",
}
"""Classes that are no handles, with what they are instead."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return load(tmp_path_factory.mktemp("package"))


def test_everything_that_a_package_exports_is_in_the_reference(package):
    modules = [package[name] if name else package for name in PACKAGES]
    exported = {thing.path for module in modules for thing in public(module)}
    assert len(exported) > 150, "the names are found"
    assert exported - documented(package).keys() == set()


def test_every_class_that_a_public_verb_returns_is_in_the_reference(package):
    known = documented(package)
    met = {}
    for each in known.values():
        for path, by in returned(each, package):
            thing = target(package.modules_collection[path])
            if thing.is_class and not thing.name.startswith("_"):
                met[thing.path] = by
    assert len(met) > 50, "the annotations are read"
    assert {path: by for path, by in met.items() if path not in {*known, *UNEXPLAINED}} == {}
    assert set(UNEXPLAINED) <= set(met), "no reason outlives its class"


def test_the_docstring_of_every_handle_says_which_threads_may_share_it(package):
    things = [each.thing for each in documented(package).values()]
    handles = {thing.path: docstring(thing) for thing in things if thing.is_class and not is_value(thing)}
    handles["latchwork.queue.sharded.delivery.Delivery"] = docstring(package["queue.sharded.delivery.Delivery"])
    assert len(handles) > 40, "the handles are found"
    assert {path for path, text in handles.items() if not SHARING.search(text)} == set(UNSHARED)


def test_a_class_that_no_page_shows_is_noticed(package, tmp_path):
    (tmp_path / "queue.md").write_text("::: latchwork.queue.paged.queue.PagedQueue\n")
    (only,) = documented(package, tmp_path).values()
    assert ("latchwork.queue.paged.cursor.Cursor", f"{only.thing.path}.cursor") in set(returned(only, package))
