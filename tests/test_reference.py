"""The API reference is whole: a reader of it meets no class that it does not explain."""

from __future__ import annotations

import pytest

pytest.importorskip("griffe")
pytest.importorskip("yaml")

from tests.reference import PACKAGES, documented, load, public, returned, target

UNEXPLAINED = {
    "latchwork.queue.sharded.envelope.Codec": "a setting of the queue is its name, and nobody calls it",
    "latchwork.queue.sharded.delivery.View": "a delivery settles itself through it",
    "latchwork.queue.sharded.slots.Held": "a delivery shows what is in it by properties of its own",
    "latchwork.store.model.expr.Bound": "made by `Once.result` and by the backends",
    "latchwork.spark.batches.OncePerBatch": "stands in a `with` statement alone, which `once_per_batch` explains",
}
"""Classes that a reader needs not know, with the reason."""


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


def test_a_class_that_no_page_shows_is_noticed(package, tmp_path):
    (tmp_path / "queue.md").write_text("::: latchwork.queue.paged.queue.PagedQueue\n")
    (only,) = documented(package, tmp_path).values()
    assert ("latchwork.queue.paged.cursor.Cursor", f"{only.thing.path}.cursor") in set(returned(only, package))
