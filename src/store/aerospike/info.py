"""The servers' information about a namespace, and its indexes: the info protocol."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aerospike

from ...errors import InvalidRequest, Misconfigured, WaitTimeout
from ...inputs import checked_store_name
from ...logs import Log
from ...plain import shown
from ...retry import Poll
from ...seams import Seams
from ..port import Key, StoreInfo
from .results import FAILURES, INDEX_EXISTS, NO_NODE, ClientFault, error_of, fault_of

log = Log(__name__)
_said: set[str] = set()
"""The namespaces of whose guarantees this process has spoken."""

INDEX_TIMEOUT = 60.0
"""Seconds that a new index may take before it can be asked."""
MAX_INDEX_NAME = 63
CLIENT = -1
PARTITIONS = 4096
_KINDS = {str: (aerospike.INDEX_STRING, "string"), int: (aerospike.INDEX_NUMERIC, "numeric")}
"""The number of each kind in the client, and its name in the servers' answers."""


def describe(client: Any, namespace: str) -> StoreInfo:
    """Edition, consistency and limits. Raises `Unavailable`, or `Misconfigured` where there is no such namespace."""
    settings = _settings(_ask(client, f"namespace/{checked_store_name('namespace', namespace)}", namespace))
    if "replication-factor" not in settings:
        raise Misconfigured(f"no namespace {namespace!r} on this server: check the last part of the store's URL")
    edition = _ask(client, "edition", namespace)
    return StoreInfo(
        "aerospike",
        edition.removeprefix("Aerospike ").removesuffix(" Edition").lower(),
        settings.get("strong-consistency") == "true",
        _number(settings, "nsup-period"),
        _number(settings, "default-ttl"),
        _number(settings, "replication-factor"),
        _number(settings, "max-record-size") or 1024 * 1024,
        {"build": _ask(client, "build", namespace)},
    )


def ensure_index(client: Any, namespace: str, wanted: tuple[str, str, type], seams: Seams) -> None:
    """Make the index and wait until every node can be asked.

    Raises `InvalidRequest` where its name is taken by the index of another set, bin or kind, and `WaitTimeout` after
    `INDEX_TIMEOUT` seconds.
    """
    set_name, bin_name, kind = wanted
    for what, given in (("namespace", namespace), ("set name", set_name), ("bin name", bin_name)):
        checked_store_name(what, given)
    name = f"{set_name}_{bin_name}"
    if kind not in _KINDS:
        raise InvalidRequest(f"an index on {shown(bin_name)} of kind {shown(kind)}; use str or int")
    if len(name.encode()) > MAX_INDEX_NAME:
        raise InvalidRequest(f"index name {shown(name)} has more than {MAX_INDEX_NAME} bytes: use shorter ids")
    number, called = _KINDS[kind]
    definition = f"set={set_name}:bin={bin_name}:type={called}"
    created = (namespace, set_name, bin_name, number, name)
    if not _is_there(client, namespace, name, definition) and not _create_index(client, created):
        _is_there(client, namespace, name, definition)  # another process has just made it, or another index so named
    ready = Poll().until(seams, lambda: _is_ready(client, namespace, name) or None, timeout=INDEX_TIMEOUT)
    if not ready:
        raise WaitTimeout(f"the index {name} is still being built after {INDEX_TIMEOUT:.0f} s: try again later")


def mastered(client: Any, namespace: str, keys: Sequence[Key]) -> dict[str, int]:
    """Return of how many of these records each node is the master now. Raises `Unavailable`."""
    wanted = Counter(partition_of(namespace, key) for key in keys)
    answers = _by_node(client, "replicas", namespace)
    if not answers:
        raise error_of(NO_NODE, namespace, write=False)
    return {node: sum(wanted[part] for part in _masters_of(answer, namespace)) for node, answer in answers.items()}


def sets(client: Any, namespace: str) -> list[str]:
    """Return the names of the sets that have records, sorted. Raises `Unavailable`."""
    answers = _by_node(client, f"sets/{checked_store_name('namespace', namespace)}", namespace)
    if not answers:
        raise error_of(NO_NODE, namespace, write=False)
    found = set()
    for one in ";".join(answers.values()).split(";"):
        settings = dict(pair.split("=", 1) for pair in one.split(":") if "=" in pair)
        if _number(settings, "objects"):
            found.add(settings.get("set", ""))
    return sorted(found - {""})


def partition_of(namespace: str, key: Key) -> int:
    """Return the partition of a record: the first 12 bits of its digest, as the server counts them (little-endian)."""
    digest = aerospike.calc_digest(namespace, key.set, key.name)
    return (digest[0] + (digest[1] << 8)) & (PARTITIONS - 1)


def _masters_of(answer: str, namespace: str) -> list[int]:
    """Return the partitions of which a node is the master: `namespace:regime,copies,bits of the masters,bits of the
    rest`.
    """
    answers = dict(one.split(":", 1) for one in answer.split(";") if ":" in one)
    bits = base64.b64decode(answers[namespace].split(",")[2]) if namespace in answers else bytes(PARTITIONS // 8)
    return [number for number in range(PARTITIONS) if bits[number >> 3] & (0x80 >> (number & 7))]


def _is_there(client: Any, namespace: str, index: str, definition: str) -> bool:
    """Whether the index exists. Asked first, because the client waits two seconds after each creation, also of one that
    exists.

    Raises `InvalidRequest` if an index of another set or bin has its name: a_b_c is the name for bin b_c in set a, and
    for bin c in set a_b.
    """
    # The text is compared, as the names of others' indexes may have any of its separators in them.
    start = f"ns={namespace}:indexname={index}:"
    answers = _ask(client, _command("sindex-list", namespace=namespace), index).split(";")
    found = [one.removeprefix(start) for one in answers if one.startswith(f"{start}set=")]
    if found and not found[0].startswith(f"{definition}:"):
        other = found[0].partition(":indextype=")[0]
        raise InvalidRequest(
            f"the index {index} is one of {other}, not of {definition}: an index is named after its set and bin, so "
            "give one of them another name"
        )
    return bool(found)


def _create_index(client: Any, wanted: tuple[Any, ...]) -> bool:
    """Create the index; return False if there is one with its name."""
    try:
        client.index_single_value_create(*wanted, {})
    except FAILURES as failure:
        fault = _fault(failure)
        if fault.code != INDEX_EXISTS:
            raise error_of(fault, f"index {wanted[-1]}", write=False) from None
        return False
    return True


def _is_ready(client: Any, namespace: str, index: str) -> bool:
    answers = _by_node(client, _command("sindex-stat", namespace=namespace, indexname=index), index)
    if not answers:
        _ask(client, _command("sindex-list", namespace=namespace), index)  # raises where there is no node to ask
    return bool(answers) and all(_settings(answer).get("load_pct") == "100" for answer in answers.values())


def _fault(failure: BaseException) -> ClientFault:
    """Return the text of an exception; without a node to ask, the client's own error says nothing."""
    fault = fault_of(failure)
    return NO_NODE if fault.code == CLIENT else fault


def _command(name: str, **given: str) -> str:
    """Return a command of the info protocol. Raises `InvalidRequest` for what one cannot hold: there is no way to quote
    it.
    """
    return f"{name}:" + ";".join(f"{what}={checked_store_name(what, value)}" for what, value in given.items())


def _ask(client: Any, command: str, what: str) -> str:
    try:
        answer: str = client.info_random_node(command)
    except FAILURES as failure:
        raise error_of(_fault(failure), what, write=False) from None
    return answer.rpartition("\t")[2].strip()


def _by_node(client: Any, command: str, what: str) -> dict[str, str]:
    try:
        answers: dict[str, tuple[Any, str | None]] = client.info_all(command)
    except FAILURES as failure:
        raise error_of(_fault(failure), what, write=False) from None
    return {node: (text or "").rpartition("\t")[2].strip() for node, (_, text) in answers.items()}


def _settings(answer: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in answer.split(";") if "=" in pair)


def _number(settings: dict[str, str], name: str) -> int:
    return int(settings.get(name, "0"))


def log_guarantees(client: Any, namespace: str) -> StoreInfo | None:
    """Return the servers' information about the namespace, if this process has not asked before; log its warnings."""
    if namespace in _said:
        return None
    _said.add(namespace)  # before it asks, or another thread would say it too
    try:
        info = describe(client, namespace)
    except Exception:  # noqa: BLE001 - a call does not fail for its warning; the client may be anything
        _said.discard(namespace)
        return None
    if not info.strong_consistency:
        log.warning(
            "namespace %s is not strongly consistent (AP mode): both sides of a network split accept writes, and one "
            "side's are lost when it heals; docs/reliability.md says what then fails",
            namespace,
        )
    if info.nsup_period == 0:
        log.warning(
            "namespace %s has nsup-period 0: writes with a time to live fail, unless allow-ttl-without-nsup is true; "
            "set nsup-period, say 120, in the server's configuration",
            namespace,
        )
    return info
