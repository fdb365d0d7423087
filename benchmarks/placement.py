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
import statistics

from benchmarks._harness import aerospike_url, table
from tools.placement import SHARDS, check, imbalances, masters, shard_partitions

NODES = (1, 2, 3, 5, 8, 16, 32)


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
        with aerospike_url(options.url) as url:
            print(f"\n{check(url):,} partitions compared with the client's own answer: all equal.")


if __name__ == "__main__":
    main()
