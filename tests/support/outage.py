"""Outages of real servers: nodes behind proxies of their own, which are refused, stopped, or beyond a black hole."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aerospike

from latchwork.store.aerospike.connection import config_of
from latchwork.store.aerospike.url import parse
from tools import servers

from .proxy import Fault, Proxy

PROBES = 200
"""Keys that are asked for, of 4,096 partitions: those that a client does not know yet are many."""


class Place:
    """A server, or the nodes of a cluster, each behind a proxy of its own. Outages are those of `node`."""

    def __init__(self, nodes: Sequence[servers.Asd]) -> None:
        self.nodes, self.proxies = nodes, [Proxy(node.proxy_port, node.port) for node in nodes]

    def client(self, *, patience: int, tend: int = 1000, connecting: int | None = None) -> Any:
        """A client that looks at its nodes each `tend` ms, and forgets one after five looks in vain.

        patience: milliseconds after which it gives up a request; connecting: a look at a node, `patience` unless given.
        """
        seeds = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        times = {"socket": patience, "total": patience, "connect": connecting or patience}
        options = "&".join(f"{name}_timeout={time}" for name, time in times.items())
        config = config_of(parse(f"aerospike://{seeds}/test?services_alternate=true&{options}"))
        config["policies"]["info"] = {"timeout": patience}
        return aerospike.client({**config, "tend_interval": tend}).connect()

    def name_of(self, place: int) -> str:
        """The name that the cluster has for a node."""
        node = self.nodes[place]
        client = servers.client_of(node)
        try:
            named = {one["port"]: one["node_name"] for one in client.get_node_names()}
            return str(named[node.port])
        finally:
            client.close()

    @contextmanager
    def refused(self, node: int = 0) -> Iterator[None]:
        """Nobody listens, as where the server is dead; its records stay."""
        self.proxies[node].close()
        try:
            yield
        finally:
            self.proxies[node].open()

    @contextmanager
    def no_node(self, client: Any) -> Iterator[None]:
        """The client has forgotten the only node; it knows it again in the end."""
        with self.refused():
            servers.until(lambda: not client.get_node_names())
            yield
        servers.until(lambda: _knows_partitions(client))

    @contextmanager
    def stopped(self, node: int = 0) -> Iterator[None]:
        """The server is stopped by a signal, and goes on in the end."""
        self.nodes[node].send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.nodes[node].send(signal.SIGCONT)

    @contextmanager
    def ended(self, node: int = 0, number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        """The server has ended by a signal, and is started again in the end, with what its storage keeps."""
        self.nodes[node].stop(number)
        try:
            yield
        finally:
            self.nodes[node].start()

    @contextmanager
    def during(self, fault: Fault, node: int = 0) -> Iterator[None]:
        """This happens to every request."""
        self.proxies[node].outage = fault
        try:
            yield
        finally:
            self.proxies[node].outage = None

    def close(self) -> None:
        """Close the proxies; the servers are somebody else's."""
        for proxy in self.proxies:
            proxy.close()


def _knows_partitions(client: Any) -> bool:
    """Whether the client knows a node for each partition: it learns that some time after the name of the node."""
    try:
        for number in range(PROBES):
            client.exists(("test", "probe", number))
    except aerospike.exception.AerospikeError:
        return False
    return True
