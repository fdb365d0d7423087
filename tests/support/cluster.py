"""A real Aerospike cluster on this machine: nodes that keep two copies of every record, any of which may be killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aerospike

from . import servers


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
        client = aerospike.client({"hosts": [(started[0].host, started[0].port)]}).connect()
        stack.callback(client.close)
        servers.until(lambda: _settled(client, nodes))
        yield started


def url(nodes: list[Node]) -> str:
    """The cluster's, naming all of the nodes."""
    return f"aerospike://{','.join(f'{node.host}:{node.port}' for node in nodes)}/{nodes[0].namespace}"


def settled(nodes: list[Node]) -> None:
    """Wait until all of them are one cluster again and have moved all partitions."""
    client = aerospike.client({"hosts": [(node.host, node.port) for node in nodes]}).connect()
    try:
        servers.until(lambda: _settled(client, len(nodes)))
    finally:
        client.close()


def _settled(client: object, nodes: int) -> bool:
    told = [str(answer) for answer in client.info_all("statistics").values()]
    whole = all(f"cluster_size={nodes};" in one and "migrate_partitions_remaining=0;" in one for one in told)
    return len(told) == nodes and whole
