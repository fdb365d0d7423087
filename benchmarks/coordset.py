"""Presence, semaphores, barriers, read-write locks and rate limiters, beside raw loops and kazoo's recipes.

Run it from the project's root as `python -m benchmarks.coordset`. A raw loop is the least that the client alone can do
for the purpose: one guarded update to take a place in a map, one to give it back, without leases, fences, or a memory
of what was sent. kazoo's recipes run on a real ZooKeeper in the same turns: one server with its log on the disk, where
the Aerospike node keeps its records in memory, so that their ratio says which calls each makes rather than how quick a
disk is. kazoo has no rate limiter. Targets: 2 calls to take and give back a semaphore or a read-write lock, 1 for a
heartbeat, for a list of members and for a decision of a rate limiter; and no fewer a second than kazoo's recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import map_operations, operations
from kazoo.client import KazooClient
from kazoo.recipe.barrier import DoubleBarrier

from benchmarks._harness import Case, CountingStore, aerospike_url, arguments, interleaved, table, together
from benchmarks.targets import Verdict, judged
from latchwork.coord import Barrier, Group, RateLimiter, ReadWriteLock, Semaphore
from latchwork.store.aerospike.store import AerospikeStore
from tools import servers

PERMITS, MEMBERS, PARTIES = 4, 20, 4
MANY = 10**9
"""Calls that a limiter allows in its window: more than there will be."""
SET, WARM = "bench_coordset", 20


class Raw:
    """The anchor: the client's own guarded updates of maps, with filters compiled once."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client, self._numbers, self._namespace = client, count(), namespace
        self._room = exp.LT(exp.MapSize(None, exp.MapBin("held")), PERMITS).compile()
        self._below = exp.LT(exp.IntBin("n"), MANY).compile()
        for name in ("permits", "limit", "members", "barrier"):
            client.put(self.key(name), {"held": {}, "n": 0})
        client.put(self.key("members"), {"held": {f"m{number}": [number, "x"] for number in range(MEMBERS)}})

    def key(self, name: str) -> tuple[str, str, str]:
        return self._namespace, SET, name

    def pair(self) -> None:
        """Take one of the permits, and give it back."""
        mine = f"h{next(self._numbers)}"
        put = [map_operations.map_put("held", mine, [1, "me"])]
        self._client.operate(self.key("permits"), put, policy={"expressions": self._room})
        self._client.operate(self.key("permits"), [map_operations.map_remove_by_key("held", mine, 0)])

    def beat(self) -> None:
        """Write that a member lives."""
        put = [map_operations.map_put("held", "m1", [next(self._numbers), "x"])]
        self._client.operate(self.key("members"), put)

    def join(self) -> None:
        """Enter a map, and leave it."""
        self._client.operate(self.key("members"), [map_operations.map_put("held", "new", [1, "x"])])
        self._client.operate(self.key("members"), [map_operations.map_remove_by_key("held", "new", 0)])

    def members(self) -> None:
        self._client.get(self.key("members"))

    def decide(self) -> None:
        """Count a call where there is room."""
        steps = [operations.increment("n", 1), operations.read("n")]
        self._client.operate(self.key("limit"), steps, policy={"expressions": self._below})

    def meet(self) -> None:
        """All arrive at a counter, and read it until all have."""
        key = self.key(f"barrier-{next(self._numbers)}")

        def party() -> None:
            self._client.operate(key, [operations.increment("n", 1)], {"ttl": 60})
            while self._client.get(key)[2]["n"] < PARTIES:
                pass

        together([party] * PARTIES)


class Ours:
    """The primitives."""

    def __init__(self, store: CountingStore) -> None:
        self._semaphore = Semaphore(store, "bench", permits=PERMITS)
        self._lock = ReadWriteLock(store, "bench")
        self._limiter = RateLimiter(store, "bench", limit=MANY, per=60)
        self._group = Group(store, "bench")
        self._kept = [self._group.join(f"m{number}", lease=3_600, keep_alive=False) for number in range(MEMBERS)]
        parties = [f"p{number}" for number in range(PARTIES)]
        barrier = Barrier(store, "bench", "bench", parties=parties)
        self._parties = [partial(barrier.wait, party, timeout=60) for party in parties]

    def permit(self) -> None:
        self._semaphore.acquire().release()

    def read(self) -> None:
        self._lock.read().release()

    def write(self) -> None:
        self._lock.write().release()

    def beat(self) -> None:
        self._kept[0].renew()

    def join(self) -> None:
        self._group.join("new", keep_alive=False).leave()

    def members(self) -> None:
        assert len(self._group.members()) >= MEMBERS

    def decide(self) -> None:
        assert self._limiter.try_acquire().allowed

    def meet(self) -> None:
        together(self._parties)


class Kazoo:
    """kazoo's recipes, and how many requests they have sent."""

    def __init__(self, hosts: str) -> None:
        self.client = KazooClient(hosts)
        self.client.start(30)
        self.requests = 0
        sent = self.client._call

        def counted(*args: Any) -> Any:
            self.requests += 1
            return sent(*args)

        self.client._call = counted
        self._party = self.client.Party("/bench/party", "new")
        kept = [self.client.Party("/bench/party", f"m{number}") for number in range(MEMBERS)]
        for one in kept:
            one.join()
        self._numbers = count()

    def pair(self, recipe: Callable[..., Any], path: str, **options: Any) -> None:
        """Take one, and give it back."""
        with recipe(f"/bench/{path}", "me", **options):
            pass

    def join(self) -> None:
        self._party.join()
        self._party.leave()

    def members(self) -> None:
        assert len(list(self._party)) >= MEMBERS

    def meet(self) -> None:
        path = f"/bench/barrier/{next(self._numbers)}"

        def party(number: int) -> None:
            DoubleBarrier(self.client, path, PARTIES, f"p{number}").enter()

        together([partial(party, number) for number in range(PARTIES)])


def cases(raw: Raw, ours: Ours, kazoo: Kazoo) -> list[tuple[str, str, Sequence[Case]]]:
    """Of each purpose what it is, which recipe of kazoo stands beside it, and its cases: ours, raw, and kazoo's."""
    client = kazoo.client

    def pair(recipe: Callable[..., Any], path: str, **options: Any) -> Callable[[], None]:
        return partial(kazoo.pair, recipe, path, **options)

    rows: list[tuple[str, str, Callable[[], object], Callable[[], object], Callable[[], object] | None]] = [
        ("semaphore: take, give back", "Semaphore", ours.permit, raw.pair,
         pair(client.Semaphore, "permits", max_leases=PERMITS)),
        ("rwlock: read, release", "ReadLock", ours.read, raw.pair, pair(client.ReadLock, "rw")),
        ("rwlock: write, release", "WriteLock", ours.write, raw.pair, pair(client.WriteLock, "rw")),
        ("rwlock: write, release; beside a plain lock", "Lock", ours.write, raw.pair, pair(client.Lock, "lock")),
        (f"barrier: {PARTIES} meet", "DoubleBarrier.enter", ours.meet, raw.meet, kazoo.meet),
        ("presence: join, leave", "Party", ours.join, raw.join, kazoo.join),
        (f"presence: {MEMBERS} members", "Party", ours.members, raw.members, kazoo.members),
        ("presence: a heartbeat", "-", ours.beat, raw.beat, None),
        ("limiter: a decision", "-", ours.decide, raw.decide, None),
    ]  # fmt: skip
    return [
        (what, recipe, [Case("ours", mine), Case("raw", least), *([Case("kazoo", theirs)] if theirs else [])])
        for what, recipe, mine, least, theirs in rows
    ]


def calls(case: Case, told: Callable[[], int]) -> float:
    """Calls of one run, over some."""
    before = told()
    for _ in range(WARM):
        case.run()
    return (told() - before) / WARM


def main() -> None:
    options = arguments(__doc__.partition("\n")[0], seconds=2.0)
    zookeeper = servers.started(servers.ZooKeeper())
    try:
        with aerospike_url(options.url) as url:
            store = CountingStore(AerospikeStore.from_url(url))
            client, namespace = store.inner._link.connect(), store.inner.namespace
            kazoo = Kazoo(zookeeper.hosts)
            measure(cases(Raw(client, namespace), Ours(store), kazoo), store, kazoo, options.seconds)
            kazoo.client.stop()
            client.truncate(namespace, SET, 0)
    finally:
        zookeeper.close()


def measure(
    purposes: Sequence[tuple[str, str, Sequence[Case]]], store: CountingStore, kazoo: Kazoo, seconds: float
) -> None:
    """Print the table, and what is judged."""
    rows, verdicts = [], []
    most = {"semaphore: take, give back": 2, "rwlock: read, release": 2, "rwlock: write, release": 2,
            "presence: a heartbeat": 1, f"presence: {MEMBERS} members": 1, "limiter: a decision": 1}  # fmt: skip
    for what, recipe, some in purposes:
        made = calls(some[0], store.total)
        theirs = calls(some[2], lambda: kazoo.requests) if len(some) > 2 else "-"
        found = interleaved(some, seconds)
        beside = found.ratio("ours", "kazoo") if len(some) > 2 else None
        rows.append((what, made, found.rate("ours"), found.ratio("ours", "raw"), recipe, theirs, beside or "-"))
        if what in most:
            verdicts.append(Verdict(f"{what}: calls", most[what], made, at_least=False))
        if beside is not None:
            verdicts.append(Verdict(f"{what} / kazoo {recipe}", 1, beside))
    head = ("case", "calls", "a second", "x raw", "kazoo's recipe", "its requests", "x kazoo")
    print(table(head, rows) + "\n")
    print(judged(verdicts))


if __name__ == "__main__":
    main()
