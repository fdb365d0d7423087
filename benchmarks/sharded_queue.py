"""The sharded queue against raw loops: publish, drain one at a time, drain in hundreds, and an idle queue.

Run it from the project's root as `python -m benchmarks.sharded_queue`. The anchors are the calls of the client alone:
the call patterns of the Java queue (1.x: 6 calls, 2.0: 4), of ours without any of its safety, of ours with the same
guards and bins, and of ours with the token of the claim too, which no Python can beat with this protocol. In hundreds
its stamps ask for more than ours, which know that their ids are new (docs/protocols/sharded-queue.md). Targets: 3.00
calls a message and 0.85 of the raw loop singly, at most 0.05 calls and 0.6 of it in hundreds (0.8 where guarded),
2.00 calls for a publish, and for thousands at most 0.03 and 0.6 of a raw batch. A publisher that 8 threads share: 5 x
what they publish each alone, and at most 0.4 calls a message where each waits for each of its messages.
A consumer's worker with a handler that does nothing stands beside the raw loop of single messages: at most 0.2 calls a
message.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import count

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.batch.records import BatchRecords, Remove, Write
from aerospike_helpers.operations import expression_operations, operations

from benchmarks._harness import (
    Case,
    CountingStore,
    Rates,
    aerospike_url,
    arguments,
    emptied,
    interleaved,
    server_operations,
    table,
    together,
)  # fmt: skip
from benchmarks._raw_claim import RawClaim
from benchmarks.targets import Verdict, judged
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.store.aerospike.store import AerospikeStore

PAYLOAD = b"x" * 256
HUNDRED, THOUSAND = 100, 1000
HANDLER = "consumer, function handler"
WHOLE, GUARDED = "raw 3 calls, whole protocol", "raw, in hundreds, guarded envelope"
SEND = {"key": aerospike.POLICY_KEY_SEND, "commit_level": aerospike.POLICY_COMMIT_LEVEL_ALL, "max_retries": 0}
CREATE = {**SEND, "exists": aerospike.POLICY_EXISTS_CREATE, "ttl": 172_800}
CREATE_ROW = {"key": aerospike.POLICY_KEY_SEND, "exists": aerospike.POLICY_EXISTS_CREATE, "ttl": 172_800}
UPDATE_ROW = {"key": aerospike.POLICY_KEY_SEND, "exists": aerospike.POLICY_EXISTS_UPDATE, "ttl": -2}
LOAD, FIRE = "LOAD_POINTER", "FIRE_POINTER"
READ_ALL = {"op": aerospike.OPERATOR_READ, "bin": ""}
STAMPABLE = exp.And(
    exp.BinExists("data"), exp.Or(exp.Not(exp.BinExists("delivery")), exp.NE(exp.StrBin("delivery"), "me"))
).compile()
MINE = exp.And(exp.Eq(exp.StrBin("delivery"), "me"), exp.BinExists("data")).compile()
ADVANCED = exp.Min(exp.Add(exp.IntBin(FIRE), HUNDRED), exp.IntBin(LOAD)).compile()
UNFIRED = exp.LT(exp.IntBin(FIRE), exp.IntBin(LOAD)).compile()


class Raw:
    """The anchors: one shard, the client's own calls."""

    def __init__(self, client, namespace: str, name: str) -> None:
        self.client, self.namespace, self.name = client, namespace, name
        self.meta = (namespace, "bench_meta_set", f"{name}_POINTERS")
        client.put(self.meta, {LOAD: 0, FIRE: 0}, policy=SEND)
        self.claim = RawClaim(client, self.meta, {**SEND, "exists": aerospike.POLICY_EXISTS_UPDATE, "ttl": -1})

    def key(self, pointer: int):
        return (self.namespace, "bench_data_set", f"{self.name}_{pointer}")

    def bins(self) -> dict[str, object]:
        now = int(time.time() * 1000)
        return {"data": PAYLOAD, "msgId": f"{now}", "attempts": 0, "enqueuedAt": now, "modified_at": now, "v": 1}

    def reserve(self, n: int) -> int:
        steps = [operations.increment(LOAD, n), operations.read(LOAD)]
        return self.client.operate(self.meta, steps, policy=SEND)[2][LOAD] - n + 1

    def publish(self) -> None:
        self.client.put(self.key(self.reserve(1)), self.bins(), policy=CREATE)

    def publish_batch(self, n: int = THOUSAND) -> None:
        first = self.reserve(n)
        names = [(bin, value) for bin, value in self.bins().items()]
        rows = [
            Write(self.key(pointer), [operations.write(bin, value) for bin, value in names], policy=CREATE_ROW)
            for pointer in range(first, first + n)
        ]
        self.client.batch_write(BatchRecords(rows))

    def fire(self) -> int:
        steps = [operations.increment(FIRE, 1), operations.read(FIRE)]
        return self.client.operate(self.meta, steps, policy={**SEND, "expressions": UNFIRED})[2][FIRE]

    def drain_1x(self) -> None:
        """Both pointers, the shard's lock-free fire, the data, the stamp, the delete: six calls."""
        self.client.get(self.meta)
        self.client.select(self.meta, [LOAD])
        key = self.key(self.fire())
        self.client.get(key)
        self.client.put(key, {"fireTS": int(time.time() * 1000)}, policy=SEND)
        self.client.remove(key)

    def drain_2(self) -> None:
        key = self.key(self.fire())
        self.client.get(key)
        self.client.put(key, {"fireTS": int(time.time() * 1000)}, policy=SEND)
        self.client.remove(key)

    def drain_3(self) -> None:
        """Our three calls without token, guards and envelope: fire, stamp with the read in it, delete."""
        key = self.key(self.fire())
        steps = [operations.write("fireTS", int(time.time() * 1000)), operations.read("data")]
        self.client.operate(key, steps, policy=SEND)
        self.client.remove(key)

    def envelope(self) -> list[object]:
        now = int(time.time() * 1000)
        writes = [operations.write("delivery", "me"), operations.write("fireTS", now)]
        return [*writes, operations.increment("attempts", 1), READ_ALL]

    def drain_guarded(self, next_pointer=None) -> None:
        """The three calls with the guards and the envelope of the protocol, but no token for the claim."""
        key = self.key((next_pointer or self.fire)())
        self.client.operate(key, self.envelope(), policy={**SEND, "expressions": STAMPABLE})
        self.client.remove(key, policy={"expressions": MINE})

    def drain_claimed(self) -> None:
        """The same with the token: all that the protocol sends, and nothing around it."""
        self.drain_guarded(self.claim)

    def fire_batch(self) -> list[object]:
        steps = [expression_operations.expression_write(FIRE, ADVANCED), operations.read(FIRE)]
        last = self.client.operate(self.meta, steps, policy={**SEND, "expressions": UNFIRED})[2][FIRE]
        return [self.key(pointer) for pointer in range(last - HUNDRED + 1, last + 1)]

    def drain_batch_guarded(self) -> None:
        keys, steps = self.fire_batch(), self.envelope()
        stamp, remove = {**UPDATE_ROW, "expressions": STAMPABLE}, {"expressions": MINE}
        self.client.batch_write(BatchRecords([Write(key, steps, policy=stamp) for key in keys]))
        self.client.batch_write(BatchRecords([Remove(key, policy=remove) for key in keys]))

    def drain_batch(self) -> None:
        keys = self.fire_batch()
        stamp = [operations.write("fireTS", int(time.time() * 1000)), operations.read("data")]
        self.client.batch_write(BatchRecords([Write(key, stamp) for key in keys]))
        self.client.batch_write(BatchRecords([Remove(key) for key in keys]))


class Ours:
    """The same through a queue."""

    def __init__(self, queue) -> None:
        self.queue = queue

    def publish(self) -> None:
        self.queue.publish(PAYLOAD)

    def publish_batch(self) -> None:
        self.queue.publish_many([PAYLOAD] * THOUSAND)

    def drain(self) -> None:
        self.queue.receive()[0].ack()

    def drain_batch(self) -> None:
        self.queue.ack_many(self.queue.receive(HUNDRED))

    def worker(self, prefetch: int | None):
        """What a worker of a consumer does for one message, once it knows that its handler is quick."""
        turns = Consumer(self.queue, lambda _: None, upkeep=False, prefetch=prefetch)._turns
        turns.pace.handled(0.0)
        turns.pace.claimed(16, 16)
        return turns.take


class Eight:
    """Eight threads that publish through one queue: each alone, or all through one publisher."""

    EACH = 100
    UNITS = 8 * EACH

    def __init__(self, queue) -> None:
        self.queue, self.publisher = queue, queue.publisher()

    def alone(self) -> None:
        together([self._each(self.queue.publish)] * 8)

    def waiting(self) -> None:
        """Each thread waits until its message is safe, as a request of a web service does."""
        together([self._each(lambda payload: self.publisher.publish(payload).result())] * 8)

    def kept(self) -> None:
        """Each thread keeps its futures, and asks them in the end."""
        together([self._all] * 8)

    def _each(self, publish):
        def run() -> None:
            for _ in range(self.EACH):
                publish(PAYLOAD)

        return run

    def _all(self) -> None:
        for publication in [self.publisher.publish(PAYLOAD) for _ in range(self.EACH)]:
            publication.result()


class Supplied:
    """A drain that is always preceded by enough published messages, outside of the measured time."""

    def __init__(self, drain, supply, units: int) -> None:
        self.drain, self.supply, self.units, self.left = drain, supply, units, 0

    def fill(self, messages: int) -> None:
        while self.left < messages:
            self.supply()
            self.left += THOUSAND

    def __call__(self) -> None:
        self.left -= self.units
        self.drain()


def drains(store, raw_of) -> tuple[list[Case], list[Supplied]]:
    ours, batched = Ours(a_queue(store, "drain")), Ours(a_queue(store, "drain100"))
    single, handled = Ours(a_queue(store, "single")), Ours(a_queue(store, "handled"))
    shapes = [
        ("Java 1.x pattern, singly", *_raw(raw_of, "drain_1x"), 1),
        ("Java 2.0 pattern, singly", *_raw(raw_of, "drain_2"), 1),
        ("raw 3 calls, singly", *_raw(raw_of, "drain_3"), 1),
        ("raw 3 calls, guarded envelope", *_raw(raw_of, "drain_guarded"), 1),
        (WHOLE, *_raw(raw_of, "drain_claimed"), 1),
        ("queue, singly", ours.drain, ours.publish_batch, 1),
        ("raw, in hundreds", *_raw(raw_of, "drain_batch"), HUNDRED),
        (GUARDED, *_raw(raw_of, "drain_batch_guarded"), HUNDRED),
        ("queue, in hundreds", batched.drain_batch, batched.publish_batch, HUNDRED),
        ("consumer, one by one", single.worker(1), single.publish_batch, 1),
        (HANDLER, handled.worker(None), handled.publish_batch, 1),
    ]
    supplied = [Supplied(drain, supply, units) for _, drain, supply, units in shapes]
    return [Case(shape[0], runs, shape[3]) for shape, runs in zip(shapes, supplied, strict=True)], supplied


def _raw(raw_of, how: str):
    raw = raw_of(how)
    return getattr(raw, how), raw.publish_batch


def a_queue(store, name: str):
    registry = QueueRegistry(store, f"bench{store.seams.unique()[:8]}", farm_id="b")
    return registry.create(QueueConfig(name, shards=8, codec="bytes"))


def calls_of(cases, store, client, namespace: str, runs: int = 60) -> list[tuple[float, float]]:
    """Calls at the store's boundary, and record operations by the server's own count, per message."""
    found = []
    for case in cases:
        case.run()
        store.calls.clear()
        before = server_operations(client, namespace)
        for _ in range(runs):
            case.run()
        served = server_operations(client, namespace) - before
        found.append((store.total() / runs / case.units, served / runs / case.units))
    return found


def idle(store, clients: int = 100) -> Verdict:
    """Records that a hundred consumers read a second while they wait 20 s for an idle queue."""
    queue = a_queue(store, "idle")
    queue.receive(timeout=10)
    store.read = 0
    together([lambda: queue.receive(timeout=20)] * clients)
    return Verdict(f"queue, idle, {clients} consumers: reads a second", 20, store.read / 20, at_least=False)


def threaded(name: str, run, units: int, threads: int, seconds: float) -> tuple[str, float]:
    """Messages a second of so many threads."""
    end, done = time.perf_counter() + seconds, count()

    def work() -> None:
        while time.perf_counter() < end:
            run()
            next(done)

    began = time.perf_counter()
    together([work] * threads)
    return f"{name}, {threads} threads", next(done) * units / (time.perf_counter() - began)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        store = CountingStore(AerospikeStore.from_url(url))  # for the counts; times are taken on the store within
        client, namespace = store.inner._link.connect(), store.inner.namespace
        verdicts = [
            *_publishing(store, client, namespace, options.seconds),
            *_draining(store, client, namespace, options.seconds),
            idle(store),
        ]
        print("\n" + judged(verdicts))
        for name in ("bench_data_set", "bench_meta_set"):
            client.truncate(namespace, name, 0)


def _publishing(store, client, namespace: str, seconds: float) -> list[Verdict]:
    raw, sets = Raw(client, namespace, "p"), ["bench_data_set"]

    def publishing(through) -> list[Case]:
        ours, eight = Ours(a_queue(through, "publish")), Eight(a_queue(through, "publishers"))
        sets.extend(f"{each.queue.registry.client_id}_data_set" for each in (ours, eight))
        return [
            Case("raw publish, singly", raw.publish),
            Case("queue publish, singly", ours.publish),
            Case("raw publish, 1000", raw.publish_batch, THOUSAND),
            Case("queue publish, 1000", ours.publish_batch, THOUSAND),
            Case("queue publish, 8 threads", eight.alone, Eight.UNITS),
            Case("publisher, 8 threads that wait for each", eight.waiting, Eight.UNITS),
            Case("publisher, 8 threads that keep futures", eight.kept, Eight.UNITS),
        ]

    cases = publishing(store.inner)
    rates = interleaved(cases, seconds, partial(emptied, client, namespace, *sets))
    calls = calls_of(publishing(store), store, client, namespace, 5)
    emptied(client, namespace, *sets)
    _show(cases, rates, calls, against=(0, 0, 2, 2, 4, 4, 4))
    return [
        Verdict("publish singly / raw", 0.6, rates.ratio("queue publish, singly", "raw publish, singly")),
        Verdict("publish singly: calls", 2, calls[1][0], at_least=False),
        Verdict("publish 1000 / raw batch", 0.6, rates.ratio("queue publish, 1000", "raw publish, 1000")),
        Verdict("publish 1000: calls a message", 0.03, calls[3][0], at_least=False),
        Verdict("publisher, 8 threads / publish", 5, rates.ratio(cases[6].name, cases[4].name)),
        Verdict("publisher, 8 threads that wait: calls a message", 0.4, calls[5][0], at_least=False),
    ]


def _draining(store, client, namespace: str, seconds: float) -> list[Verdict]:
    cases, supplied = drains(store.inner, lambda name: Raw(client, namespace, name))
    rates: dict[str, list[float]] = {case.name: [] for case in cases}
    for turn in range(max(3, round(seconds / 0.25))):
        for place in [(turn + n) % len(cases) for n in range(len(cases))]:
            case, source = cases[place], supplied[place]
            messages = 1000 if case.units == 1 else 5000
            source.fill(2 * messages)
            for timed in (False, True):  # a lead-in, as `interleaved` has one
                began = time.perf_counter()
                for _ in range(messages // case.units):
                    case.run()
                if timed:
                    rates[case.name].append(messages / (time.perf_counter() - began))
    counted, sources = drains(store, lambda name: Raw(client, namespace, f"{name}, counted"))
    for source in sources:
        source.fill(8_000)
    found, calls = Rates(rates), calls_of(counted, store, client, namespace)
    _show(cases, found, calls, against=(2, 2, 2, 2, 2, 2, 6, 6, 6, 2, 2))
    single, batch = cases[5], cases[8]
    for source in (supplied[5], supplied[8]):
        source.left = 0
        source.fill(60_000)
    print(table(("drain", "a second"), [
        threaded(single.name, single.run, 1, 8, 2.0),
        threaded(batch.name, batch.run, HUNDRED, 4, 0.3),
    ]))  # fmt: skip
    return [
        Verdict("drain singly / raw 3 calls", 0.85, found.ratio(single.name, "raw 3 calls, singly")),
        Verdict("drain singly / raw 3 calls, whole protocol", 0.85, found.ratio(single.name, WHOLE)),
        Verdict("drain singly: calls a message", 3, calls[5][0], at_least=False),
        Verdict("drain in hundreds / raw", 0.6, found.ratio(batch.name, "raw, in hundreds")),
        Verdict("drain in hundreds / raw, guarded", 0.8, found.ratio(batch.name, GUARDED)),
        Verdict("drain in hundreds / Java 2.0 pattern", 15, found.ratio(batch.name, "Java 2.0 pattern, singly")),
        Verdict("drain in hundreds: calls a message", 0.05, calls[8][0], at_least=False),
        Verdict("function handler / raw 3 calls, whole protocol", 2, found.ratio(HANDLER, WHOLE)),
        Verdict("function handler / without prefetch", 2, found.ratio(HANDLER, "consumer, one by one")),
        Verdict("function handler: calls a message", 0.2, calls[10][0], at_least=False),
    ]


def _show(cases, rates: Rates, calls, *, against) -> None:
    head = ("case", "messages a second", "x raw", "calls a message", "server's operations a message")
    rows = []
    for case, base, (made, served) in zip(cases, against, calls, strict=True):
        ratio = rates.ratio(case.name, cases[base].name)
        rows.append((case.name, rates.rate(case.name), ratio, f"{made:.3f}" if made else "-", f"{served:.2f}"))
    print(table(head, rows) + "\n")


if __name__ == "__main__":
    main()
