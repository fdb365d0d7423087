"""What metrics and traces cost: nothing while they are off, and how much when they are on.

Run it from the project's root as `python -m benchmarks.observe`. The anchor is the package itself with every call site
of `note`, `span` and `carry` taken out: a copy of the sources, rewritten and loaded beside the real one, in the same
process and run. Target: off / without >= 0.97, which is what two runs of the same code differ by. The store in memory
shows the most that telling can cost, as nothing else takes time there; the real server what it costs in practice.
"""

from __future__ import annotations

import ast
import importlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from benchmarks._harness import Case, aerospike_url, arguments, interleaved, table
from benchmarks.targets import Verdict, judged
from latchwork.observe import observe
from latchwork.observe.opentelemetry import OpenTelemetry
from latchwork.observe.prometheus import PrometheusTelemetry

ROOT = Path(__file__).resolve().parents[1]
MESSAGES = 500
WITHOUT, OFF, PROMETHEUS, OPENTELEMETRY = "without", "off", "Prometheus", "OpenTelemetry"
VARIANTS = (WITHOUT, OFF, PROMETHEUS, OPENTELEMETRY)
NAMES = count()


class Untold(ast.NodeTransformer):
    """Takes out whatever tells something to the outside; `taken` counts it."""

    def __init__(self) -> None:
        self.taken = 0

    def _is(self, node: ast.AST, verb: str) -> bool:
        found = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"seams.{verb}")
        self.taken += found
        return found

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if self._is(node.value, "note") else self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.body if self._is(node.items[0].context_expr, "span") else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if self._is(node, "carry") else node


@contextmanager
def package_without_hooks() -> Iterator[str]:
    """The name of a copy of the package in which nothing is told to the outside."""
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "latchwork_untold"
        for source in (ROOT / "src").rglob("*.py"):
            copy, untold = target / source.relative_to(ROOT / "src"), Untold()
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(ast.unparse(untold.visit(ast.parse(source.read_text()))))
            taken += untold.taken
        assert taken >= 15, f"only {taken} call sites were found"
        sys.path.insert(0, folder)
        yield target.name
        sys.path.remove(folder)


def package(name: str) -> SimpleNamespace:
    """What is needed of the package, or of its copy."""
    parts = {part: importlib.import_module(f"{name}.{part}") for part in ("coord", "queue", "store")}
    return SimpleNamespace(connect=importlib.import_module(name).connect, **parts)


class Variant:
    """One way to run everything: a latch that is counted, a record that is written, a queue that is consumed."""

    def __init__(self, found: SimpleNamespace, store, *, shards: int = 4) -> None:
        self.store, self.name = store, f"observe{next(NAMES)}"
        self.key, self.write = found.store.Key("bench_store", self.name), found.store.Add("n", 1)
        store.operate(self.key, self.write, exists=found.store.Exists.ANY)
        self.latch = found.coord.CountDownLatch.create(store, "bench", self.name, 10**9)
        registry = found.queue.QueueRegistry(store, "bench", farm_id="b")
        self.queue = registry.create(found.queue.QueueConfig(self.name, shards=shards))
        self.done, self.left = threading.Event(), 0
        self.consumer = found.queue.Consumer(self.queue, self._handle, concurrency=1).start()

    def operate(self) -> None:
        self.store.operate(self.key, self.write)

    def count_down(self) -> None:
        self.latch.count_down()

    def consume(self) -> None:
        """Publish messages, and wait until the consumer's one worker has handled them."""
        self.done.clear()
        self.left = MESSAGES
        self.queue.publish_many(["x" * 256] * MESSAGES)
        if not self.done.wait(60):
            raise TimeoutError(f"{self.left} messages were not handled")

    def _handle(self, _: object) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


def variants(plain: SimpleNamespace, url: str) -> dict[str, Variant]:
    """The package without hooks, with hooks that lead nowhere, and with each adapter."""
    real = package("latchwork")
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    telemetries = {
        PROMETHEUS: PrometheusTelemetry(CollectorRegistry()),
        OPENTELEMETRY: OpenTelemetry(meter=meter, tracer=TracerProvider().get_tracer("bench")),
    }
    made = {WITHOUT: Variant(plain, plain.connect(url)), OFF: Variant(real, real.connect(url))}
    made |= {name: Variant(real, observe(real.connect(url), telemetry)) for name, telemetry in telemetries.items()}
    return made


def measure(plain: SimpleNamespace, backend: str, url: str, seconds: float) -> list[tuple[object, ...]]:
    """A row for each kind of work: what it runs at without hooks, and each variant's share of that."""
    rows = []
    made = variants(plain, url)
    for work, units in (("operate", 1), ("count_down", 1), ("consume", MESSAGES)):
        rates = interleaved([Case(name, getattr(made[name], work), units) for name in VARIANTS], seconds)
        ratios = [rates.ratio(name, WITHOUT) for name in VARIANTS[1:]]
        rows.append((backend, work, rates.rate(WITHOUT), *ratios))
    for variant in made.values():
        variant.consumer.stop(1)
        variant.queue.registry.deactivate(variant.name)
    return rows


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with ExitStack() as stack:
        plain = package(stack.enter_context(package_without_hooks()))
        rows = measure(plain, "memory", "memory:", options.seconds)
        rows += measure(plain, "Aerospike", stack.enter_context(aerospike_url(options.url)), options.seconds)
    print(table(("store", "work", "without hooks, a s", *(f"{name} / without" for name in VARIANTS[1:])), rows) + "\n")
    memory = [row for row in rows if row[0] == "memory"]  # a network's ups and downs are larger than what is sought
    print(judged(Verdict(f"{work}: unobserved / no hooks", 0.97, off) for _, work, _, off, *_ in memory))


if __name__ == "__main__":
    main()
