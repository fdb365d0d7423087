"""Where the client's own digests put the pointer records of a queue's shards.

The digest of a record is RIPEMD-160 of its set and key, 12 bits of it are its partition, and each of the 4,096
partitions has one master.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from latchwork.queue.sharded.shards import Shards
from latchwork.store import MemoryStore
from latchwork.store.aerospike.info import PARTITIONS, partition_of
from latchwork.store.aerospike.store import AerospikeStore

SHARDS = (1, 4, 8, 16, 32, 64, 128, 256, 512)


def shard_partitions(name: str, shards: int, namespace: str = "test", client_id: str = "shop") -> list[int]:
    """Return the partitions of a queue's pointer records, by shard."""
    queue = Shards(MemoryStore(), client_id, name, shards, ttl=1, sweep=1)
    return [partition_of(namespace, queue.pointers_key(shard)) for shard in range(shards)]


def masters(nodes: int, seed: int = 7) -> list[int]:
    """Return the master of each partition, dealt out evenly, as `prefer-uniform-balance` does."""
    dealt = [partition % nodes for partition in range(PARTITIONS)]
    random.Random(seed).shuffle(dealt)
    return dealt


def imbalances(partitions: Sequence[int], master: Sequence[int], nodes: int) -> Iterator[float]:
    """Yield, for each number of shards in `SHARDS`, the most loaded node's pointer records over the mean."""
    loads = [0] * nodes
    for number, partition in enumerate(partitions, 1):
        loads[master[partition]] += 1
        if number in SHARDS:
            yield max(loads) * nodes / number


def check(url: str, names: int = 200) -> int:
    """Compare partitions with the client's own answer; return how many. Raises `AssertionError` if one differs."""
    store = AerospikeStore.from_url(url)
    client, namespace = store._link.connect(), store.namespace
    for number in range(names):
        name = f"queue-{number}"
        queue = Shards(store, "shop", name, 32, ttl=1, sweep=1)
        for shard, partition in enumerate(shard_partitions(name, 32, namespace)):
            key = queue.pointers_key(shard)
            answer = client.get_key_partition_id(namespace, key.set, key.name)
            assert answer == partition, (key, answer, partition)
    store.close()
    return names * 32
