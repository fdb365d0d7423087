"""Logs the guarantees that a namespace lacks, when a process first connects to it."""

from __future__ import annotations

from typing import Any

from ...logs import Log
from ..model.record import StoreInfo
from .info import describe

log = Log(__name__)
_said: set[str] = set()
"""The namespaces of which this process has spoken."""


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
    _warn(info, namespace)
    return info


def _warn(info: StoreInfo, namespace: str) -> None:
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
