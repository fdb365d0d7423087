"""A real Aerospike cluster on this machine: nodes that keep two copies of every record, any of which may be killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from aerospike import exception as driver

from tools import servers


class Node(servers.Asd):
    """One node; `seed` is the heartbeat port of another."""

    def __init__(self, number: int, seed: str | None = None) -> None:
        super().__init__(data_size="512M")
        text = self.config.read_text().replace("replication-factor 1", "replication-factor 2")
        text = text.replace("proto-fd-max", f"node-id A{number}\n  proto-fd-max")
        if seed:
            text = text.replace("interval 150", f"mesh-seed-address-port 127.0.0.1 {seed}\n    interval 150")
        self.config.write_text(text)
        found = re.search(r"heartbeat \{.*?port (\d+)", text, re.DOTALL)
        assert found
        self.heartbeat = found.group(1)


@contextmanager
def cluster(nodes: int) -> Iterator[list[Node]]:
    """Nodes that know each other and have moved all partitions. Raises `servers.Unreachable` without an `asd`."""
    with ExitStack() as stack:
        started: list[Node] = []
        for number in range(1, nodes + 1):
            node = servers.started(Node(number, started[0].heartbeat if started else None))
            stack.callback(node.close)
            started.append(node)
        settled(started)
        yield started


def url(nodes: list[Node]) -> str:
    """The cluster's, naming all of the nodes."""
    return f"aerospike://{','.join(f'{node.host}:{node.port}' for node in nodes)}/{nodes[0].namespace}"


def settled(nodes: list[Node]) -> None:
    """Wait until all of them are one cluster again and have moved all partitions."""
    client = servers.client_of(*nodes)
    try:
        servers.until(lambda: _settled(client, len(nodes)))
    finally:
        client.close()


def _settled(client: Any, nodes: int) -> bool:
    # Their statistics are not enough: when nodes have just met, they count each other before they move partitions.
    with suppress(driver.AerospikeError):
        keys = client.info_all(f"cluster-stable:size={nodes};ignore-migrations=false").values()
        return len(keys) == nodes and len({str(key) for key in keys}) == 1
    return False
