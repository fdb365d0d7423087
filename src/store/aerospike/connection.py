"""Connections to Aerospike: what a URL says, and one client per URL and process.

A client is made at its first use and shared by every store of that URL in the process, so that the many stores that
Spark unpickles in one worker share one pool. A client does not survive a fork: the child starts without one.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote
from weakref import WeakSet

import aerospike

from ...errors import InvalidRequest, LatchworkError, Misconfigured, Unavailable
from ...seams import SYSTEM, Seams
from ..model.record import StoreInfo
from .info import describe
from .notes import introduced
from .results import FAILURES, error_of, fault_of
from .times import SOCKET_TIMEOUT, TOTAL_TIMEOUT, CallTimes

DEFAULT_PORT = 3000
MAX_AGE = 60.0
"""Seconds for which what the servers say of a namespace is taken to hold: its settings may change under a client."""
_URL = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(.*)", re.DOTALL)
"""RFC 3986, appendix B. `urlsplit` refuses an IPv6 address behind another host, in the newer ones of Python."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_AUTH = {"internal": aerospike.AUTH_INTERNAL, "external": aerospike.AUTH_EXTERNAL, "pki": aerospike.AUTH_PKI}
_NUMBERS = {
    "socket_timeout": SOCKET_TIMEOUT, "total_timeout": TOTAL_TIMEOUT, "connect_timeout": 1000, "connections": 100,
}  # fmt: skip
_TIMES = ("socket_timeout", "total_timeout")
_TEXTS = ("tls_name", "tls_cafile", "tls_capath", "tls_certfile", "tls_keyfile", "auth", "cluster_name")
_SWITCHES = ("tls", "require_sc", "services_alternate")


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says. Times in milliseconds, as in the server's own settings; `str` hides the password."""

    url: str = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    namespace: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        user = f"{self.user}:***@" if self.user else ""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"aerospike://{user}{hosts}/{self.namespace}"


def parse(url: str) -> Target:
    """The target of `aerospike://[user:password@]host[:port][,host...]/namespace[?options]`.

    Options, with their defaults: socket_timeout=3000, total_timeout=5000, connect_timeout=1000 (ms); connections=100
    (per node and process: multiply by the executors, and use few there); tls, tls_name, tls_cafile, tls_capath,
    tls_certfile, tls_keyfile; auth=internal (external, pki); cluster_name; services_alternate=false; require_sc=false.
    Raises `InvalidRequest` naming the part that is wrong.
    """
    url = re.sub("[\t\r\n]", "", url)  # a secret is often read with the end of its line
    scheme, authority, path, query, fragment = _URL.findall(url)[0]  # it matches every text, and a part may be empty
    if scheme.lower() != "aerospike":
        raise InvalidRequest(f"the scheme of the store's URL is {scheme!r}; it must be aerospike://")
    if "@" in path + query + fragment:
        raise InvalidRequest("the store's URL has an @ behind its host: write / ? # @ in a password as %2F %3F %23 %40")
    credentials, _, hosts = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    namespace = path.strip("/")
    if not namespace or "/" in namespace:
        raise InvalidRequest(f"namespace {namespace!r} in the store's URL: end it with /NAMESPACE")
    options = _options(parse_qsl(query, keep_blank_values=True))
    where = tuple(_host(host) for host in hosts.split(","))
    return Target(url, where, namespace, unquote(user) or None, unquote(password) or None, options)


def _host(text: str) -> tuple[str, int]:
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, port = text, str(DEFAULT_PORT)
    if not name or not _is_number(port) or not 1 <= int(port) <= 65_535:
        raise InvalidRequest(f"host {text!r} in the store's URL; it must be NAME or NAME:PORT, the port 1 to 65535")
    return name.strip("[]"), int(port)


def _options(given: list[tuple[str, str]]) -> dict[str, Any]:
    options: dict[str, Any] = dict(_NUMBERS)
    for name, text in given:
        if name in _NUMBERS:
            options[name] = _number(name, text)
        elif name in _SWITCHES:
            options[name] = _switch(name, text)
        elif name in _TEXTS and text:
            options[name] = text
        else:
            known = ", ".join(sorted([*_NUMBERS, *_SWITCHES, *_TEXTS]))
            raise InvalidRequest(f"option {name!r} of the store's URL is unknown or empty; there are: {known}")
    if options.get("auth", "internal") not in _AUTH:
        raise InvalidRequest(f"option auth={options['auth']}; it must be one of {', '.join(_AUTH)}")
    return options


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _number(name: str, text: str) -> int:
    if not _is_number(text) or not 1 <= int(text) <= 1_000_000:
        raise InvalidRequest(f"option {name}={text}; it must be a whole number, 1 to 1000000")
    return int(text)


def _switch(name: str, text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise InvalidRequest(f"option {name}={text}; it must be true or false") from None


def config_of(target: Target) -> dict[str, Any]:
    """The client's configuration: the URL's options, reads from the master, and no retries, which are the port's."""
    options = target.options
    calls = {name: options[name] for name in _TIMES}
    # A connection on which a call has timed out is closed at once: the client would keep it for 3 s and more, in the
    # hope of the answer, and it would count as one of those that the client may have.
    calls |= {"max_retries": 0, "timeout_delay": 0}
    reads = {**calls, "replica": aerospike.POLICY_REPLICA_MASTER}
    policies: dict[str, Any] = dict.fromkeys(("read", "operate", "batch", "batch_parent_write"), reads)
    policies |= dict.fromkeys(("write", "remove", "query"), calls)
    policies["auth_mode"] = _AUTH[options.get("auth", "internal")]
    config: dict[str, Any] = {
        "hosts": [(host, port, options["tls_name"]) if "tls_name" in options else (host, port)
                  for host, port in target.hosts],
        "policies": policies,
        "connect_timeout": options["connect_timeout"],
        "max_conns_per_node": options["connections"],
        "use_services_alternate": options.get("services_alternate", False),
    }  # fmt: skip
    if target.user:
        config |= {"user": target.user, "password": target.password or ""}
    if "cluster_name" in options:
        config["cluster_name"] = options["cluster_name"]
    if options.get("tls"):
        tls = {name.removeprefix("tls_"): options[name] for name in _TEXTS[1:5] if name in options}
        config["tls"] = {"enable": True, **tls}
    return config


class Link:
    """The process's client for one target, or one that the caller owns and that is never closed here."""

    def __init__(
        self, target: Target | None = None, client: Any = None, namespace: str = "", seams: Seams = SYSTEM
    ) -> None:
        self.target, self._given = target, client
        self.client: Any = None
        self.times = CallTimes(*(target.options[name] for name in _TIMES)) if target else CallTimes()
        self._namespace = target.namespace if target else namespace
        self._now = seams.monotonic
        self._info: StoreInfo | None = None
        self._due = 0.0
        self._lock = threading.Lock()
        _links.add(self)

    def connect(self) -> Any:
        """The client, made now if need be. Raises `Unavailable` or `Misconfigured`."""
        with self._lock:
            if self.client is None:
                self.client = self._given if self.target is None else _connected(self.target)
            client = self.client
        if client is None:
            raise Misconfigured("this client was made before a fork: make one in the child, or use from_url")
        info = introduced(client, self._namespace)  # unlocked: a log may be kept in this store
        if info is not None:
            self._info, self._due = info, self._now() + MAX_AGE
        return client

    def describe(self) -> StoreInfo:
        """What the servers say of the namespace, asked again after `MAX_AGE` seconds.

        Where they cannot be asked again, the old answer stands for as long. Raises `Unavailable` or `Misconfigured`
        where there is none.
        """
        info = self._info
        if info is not None and self._now() < self._due:
            return info
        self._due = self._now() + MAX_AGE  # before it asks: the other threads go on meanwhile with what is known
        try:
            info = self._info = describe(self.client or self.connect(), self._namespace)
        except Exception:  # a call that works does not fail for this question
            if info is None:
                raise
        return info

    def drop(self) -> None:
        """Let go of a client that was made here; it closes when the calls in flight have ended."""
        if self.target is not None:
            with self._lock:
                self.client = self._info = None  # by the next connection the namespace may be another

    def forked(self) -> None:
        """In the child of a fork: forget the client, whose threads and sockets stayed with the parent."""
        client = self.client or self._given
        if client is not None:
            # Destroying it would wait for threads that do not exist here, so it must live as long as the process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        self.client = self._given = None
        self._lock = threading.Lock()


def _connected(target: Target) -> Any:
    try:
        return aerospike.client(config_of(target)).connect()
    except FAILURES as failure:
        fault = fault_of(failure)
        error: LatchworkError = error_of(fault, target, write=False)
        if isinstance(error, InvalidRequest) and fault.code == -1:
            error = Unavailable(f"{target}: {fault.message}; check that a server answers there")
        raise error from None


_links: WeakSet[Link] = WeakSet()
_shared: dict[str, Link] = {}
_shared_lock = threading.Lock()


def shared(target: Target) -> Link:
    """The one link of this process for the target's URL."""
    with _shared_lock:
        return _shared.setdefault(target.url, Link(target))


def _forget_after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for link in list(_links):
        link.forked()


os.register_at_fork(after_in_child=_forget_after_fork)
