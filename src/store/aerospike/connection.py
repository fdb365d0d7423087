"""Connections to Aerospike: what a URL says, and one client per URL and process.

A client is made at its first use and shared by every store of that URL in the process, so that the many stores that
Spark unpickles in one worker share one pool. A client does not survive a fork: the child starts without one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from copy import copy
from typing import Any
from weakref import WeakSet

import aerospike

from ...deadline import within_call
from ...errors import LatchworkError, Misconfigured, Unavailable
from ...forks import members
from ...seams import SYSTEM, Seams
from ..model.record import StoreInfo
from .info import describe, log_guarantees
from .policies import CallTimes
from .results import FAILURES, error_of, fault_of
from .url import TLS_SWITCHES, TLS_TEXTS, AerospikeUrl

MAX_AGE = 60.0
"""Seconds for which what the servers say of a namespace is taken to hold: its settings may change under a client."""
ASK_AGAIN = 1.0
"""Seconds between two questions to servers that did not say what their namespace is."""
NO_ANSWER = (-1, -10)
"""Codes with which the client says that it reached no server; the first is also that of its own mistakes."""
_AUTH = {"internal": aerospike.AUTH_INTERNAL, "external": aerospike.AUTH_EXTERNAL, "pki": aerospike.AUTH_PKI}


def config_of(target: AerospikeUrl) -> dict[str, Any]:
    """Return the client's configuration: the URL's options, reads from the master, and no retries, which are the
    port's.

    Secrets in files and in the environment are read now. Raises `Misconfigured` where one is not there.
    """
    options = target.options
    calls = {name: options[name] for name in ("socket_timeout", "total_timeout")}
    # A connection on which a call has timed out is closed at once: the client would keep it for 3 s and more, in the
    # hope of the answer, and it would count against the client's limit.
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
        config |= {"user": target.user, "password": target.password or target.secret("password") or ""}
    if "cluster_name" in options:
        config["cluster_name"] = options["cluster_name"]
    if options.get("tls"):
        chosen = {name: options[f"tls_{name}"] for name in (*TLS_TEXTS, *TLS_SWITCHES) if f"tls_{name}" in options}
        password = target.secret("tls_keyfile_password")
        config["tls"] = {"enable": True, **chosen, **({} if password is None else {"keyfile_pw": password})}
    return config


class Link:
    """The process's client for one target, or one that the caller owns and that is never closed here."""

    def __init__(
        self, target: AerospikeUrl | None = None, client: Any = None, namespace: str = "", seams: Seams = SYSTEM
    ) -> None:
        self.target, self._given = target, client
        self.client: Any = None
        self.times = CallTimes(target.options) if target else CallTimes()
        self._namespace = target.namespace if target else namespace
        self._now = seams.monotonic
        self._info: StoreInfo | None = None
        self._due = 0.0
        self.durable: bool | None = None
        self._ask_again = 0.0
        self._asking = threading.RLock()
        self._lock = threading.Lock()
        self._failure: LatchworkError | None = None
        """What the last try to connect has failed with."""
        _links.add(self)

    def connect(self) -> Any:
        """Return the client, made now if need be. Raises `Unavailable` or `Misconfigured`.

        Threads that wait meanwhile fail as the one that tries to connect: if each tried by itself, one after the other,
        the last would wait for all.
        """
        before = self._failure
        with within_call(self._lock, f"no connection to {self.target or self._namespace} yet"):
            if self.client is None and self._failure is not None and self._failure is not before:
                raise copy(self._failure) from None
            if self.client is None:
                self.client = self._given if self.target is None else self._connected(self.target)
            client = self.client
        if client is None:
            raise Misconfigured("this client was made before a fork: make one in the child, or use from_url")
        info = log_guarantees(client, self._namespace)  # unlocked: a log may be kept in this store
        if info is not None:
            self._info, self._due = info, self._now() + MAX_AGE
        return client

    def _connected(self, target: AerospikeUrl) -> Any:
        try:
            return _connected(target)
        except LatchworkError as failure:
            self._failure = failure
            raise

    def describe(self) -> StoreInfo:
        """Return the servers' information about the namespace, asked again after `MAX_AGE` seconds.

        If they cannot be asked again, the old answer is used for as long. Raises `Unavailable` or `Misconfigured` if
        there is none.
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

    def is_durable(self) -> bool:
        """Whether a deletion has to be durable: whether the namespace is strongly consistent. Kept in `durable`, as no
        namespace changes in this while its servers run.

        False also if they cannot be asked now: then a strongly consistent namespace refuses to delete, and a later call
        asks again.
        """
        if self.durable is not None:
            return self.durable
        with self._asking:  # other threads wait for the answer; a log that is kept in this store asks within it
            if self.durable is None and self._now() >= self._ask_again:
                self._ask_again = self._now() + ASK_AGAIN
                try:
                    self.durable = self.describe().strong_consistency
                except Exception:  # noqa: BLE001 - a call does not fail for this question; the client may be anything
                    return False
            return bool(self.durable)

    def drop(self) -> None:
        """Release a client that was made here; it closes when the calls in progress have ended."""
        if self.target is not None:
            with self._lock:
                self.client = self._info = self.durable = None  # the next connection may be to another namespace
                self._ask_again = 0.0

    @property
    def in_use(self) -> Any:
        """The client, if there is one already."""
        return self.client or self._given

    def forked(self) -> None:
        """Forget the client in a forked child: its threads and sockets stayed with the parent."""
        self.client = self._given = None
        self._lock, self._asking = threading.Lock(), threading.RLock()


def _connected(target: AerospikeUrl) -> Any:
    try:
        return aerospike.client(config_of(target)).connect()
    except FAILURES as failure:
        fault = fault_of(failure)
        error: LatchworkError = error_of(fault, str(target), write=False)  # a target would carry its password along
        if fault.code in NO_ANSWER and not isinstance(error, Misconfigured):
            error = Unavailable(f"{target}: {fault.message} (code {fault.code}); {_remedy(target)}", **error.details)
        raise error from None


def _remedy(target: AerospikeUrl) -> str:
    if not target.options.get("tls"):
        return "check that a server answers there, and without TLS"
    return (
        "check that a server answers there with TLS, whose certificate is for tls_name and signed by one of tls_cafile "
        "or tls_capath"
    )


_links: WeakSet[Link] = WeakSet()
_shared: dict[str, Link] = {}
_shared_lock = threading.Lock()


def shared_link(target: AerospikeUrl) -> Link:
    """Return the one link of this process for the target's URL."""
    with _shared_lock:
        return _shared.setdefault(target.url, Link(target))


_forking: dict[int, list[Any]] = {}
"""By thread that forks: the clients of the parent. Python may collect garbage in the child before anything else runs
there, and to destroy a client waits for threads that the child does not have, or ends it with SIGSEGV."""


def _before_fork() -> None:
    _forking[threading.get_ident()] = [link.in_use for link in members(_links)]


def _after_fork_in_parent() -> None:
    _forking.pop(threading.get_ident(), None)


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    links = list(_links)
    for client in (*_forking.pop(threading.get_ident(), ()), *(link.in_use for link in links)):
        if client is not None:  # it must live as long as the process, also while the interpreter ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    for link in links:
        link.forked()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
