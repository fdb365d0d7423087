"""How many shards a queue needs: where the client's own digests put the pointer records of its shards.

Run it from the project's root as `python -m benchmarks.placement [--names 1000] [--check]`. Every publish and every
claim writes the pointer record of one shard, so the node that is master of most of them is the first to be full. The
digest of a record is RIPEMD-160 of its set and key, 12 bits of it are its partition, and each of the 4,096 partitions
has one master. This computes the real digests of many queues' shards, deals the partitions out to N nodes, and shows
how much more than the mean the most loaded node gets. `--check` compares the partitions with the client's own answer
on a real server.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Sequence

from benchmarks._harness import aerospike_url, table
from latchwork.queue.sharded.shards import PointerQueue
from latchwork.store import MemoryStore
from latchwork.store.aerospike.info import PARTITIONS, partition_of
from latchwork.store.aerospike.store import AerospikeStore

SHARDS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
NODES = (1, 2, 3, 5, 8, 16, 32)


def shard_partitions(name: str, shards: int, namespace: str = "test", client_id: str = "shop") -> list[int]:
    """The partitions of a queue's pointer records, by shard."""
    queue = PointerQueue(MemoryStore(), client_id, name, shards, ttl=1, sweep=1)
    return [partition_of(namespace, queue.pointers_key(shard)) for shard in range(shards)]


def masters(nodes: int, seed: int = 7) -> list[int]:
    """The master of each partition, dealt out evenly, as `prefer-uniform-balance` does."""
    dealt = [partition % nodes for partition in range(PARTITIONS)]
    random.Random(seed).shuffle(dealt)
    return dealt


def imbalances(partitions: Sequence[int], master: Sequence[int], nodes: int) -> Iterator[float]:
    """For each number of shards in `SHARDS`: the most loaded node's pointer records over the mean."""
    loads = [0] * nodes
    for number, partition in enumerate(partitions, 1):
        loads[master[partition]] += 1
        if number in SHARDS:
            yield max(loads) * nodes / number


def spread(names: int) -> dict[tuple[int, int], list[float]]:
    """The imbalances of so many queues, by (shards, nodes)."""
    queues = [shard_partitions(f"queue-{number}", max(SHARDS)) for number in range(names)]
    found: dict[tuple[int, int], list[float]] = {}
    for nodes in NODES:
        master = masters(nodes)
        for partitions in queues:
            for shards, imbalance in zip(SHARDS, imbalances(partitions, master, nodes), strict=True):
                found.setdefault((shards, nodes), []).append(imbalance)
    return found


def check(url: str | None, names: int = 200) -> int:
    """How many partitions were compared with the client's own answer; raises where one differs."""
    with aerospike_url(url) as where:
        store = AerospikeStore.from_url(where)
        client, namespace = store._link.connect(), store.namespace
        for number in range(names):
            name = f"queue-{number}"
            queue = PointerQueue(store, "shop", name, 32, ttl=1, sweep=1)
            for shard, partition in enumerate(shard_partitions(name, 32, namespace)):
                key = queue.pointers_key(shard)
                told = client.get_key_partition_id(namespace, key.set, key.name)
                assert told == partition, (key, told, partition)
        store.close()
    return names * 32


def markdown(names: int) -> str:
    """The table: a row for each number of shards, a column for each number of nodes."""
    found = spread(names)
    rows = []
    for shards in SHARDS:
        cells = [found[shards, nodes] for nodes in NODES]
        shown = (f"{statistics.median(c):.2f} / {statistics.quantiles(c, n=100)[98]:.2f}" for c in cells)
        rows.append((shards, *shown))
    return table(("shards", *(f"{n} node{'s' if n > 1 else ''}" for n in NODES)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--names", type=int, default=1000, help="queues whose shards are placed (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare the partitions with the client's own answer")
    parser.add_argument("--url", help="the server for --check; default: one of its own")
    options = parser.parse_args()
    print(f"Pointer records on the most loaded node over the mean, median / p99 of {options.names:,} queue names:\n")
    print(markdown(options.names))
    if options.check:
        print(f"\n{check(options.url):,} partitions compared with the client's own answer: all equal.")


if __name__ == "__main__":
    main()
