"""The client's policies of a write, a read and a removal: what may be there, how long it lives, the guard, the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aerospike

from ...blocking import warn_of_call
from ...deadline import call_time
from ..model.expr import Guard
from ..model.record import KEEP, NEVER, Exists, Removal, Update
from .expr import NOT_EXPIRED, compiled
from .url import NUMBERS

Policy = dict[str, Any]

ONE_TRY: Policy = {"max_retries": 0}
WRITE: Policy = {"max_retries": 0, "key": aerospike.POLICY_KEY_SEND, "commit_level": aerospike.POLICY_COMMIT_LEVEL_ALL}
ROW: Policy = {name: WRITE[name] for name in ("key", "commit_level")}
"""Of a row of a batch; how often it is tried is the batch's."""
DURABLE: Policy = {"durable_delete": True}
"""Of a write that may delete a record in a strongly consistent namespace. There the server refuses to delete a record
without a tombstone, unless `strong-consistency-allow-expunge` is set; a Community Edition refuses to leave one.
"""
_EXISTS = {
    Exists.UPDATE: aerospike.POLICY_EXISTS_UPDATE,
    Exists.CREATE: aerospike.POLICY_EXISTS_CREATE,
    Exists.ANY: aerospike.POLICY_EXISTS_IGNORE,
}
_UPDATE = aerospike.POLICY_EXISTS_UPDATE
_TTL = {KEEP: aerospike.TTL_DONT_UPDATE, NEVER: aerospike.TTL_NEVER_EXPIRE}


def policy_of(base: Policy, update: Update) -> Policy:
    """Return the policy of one update."""
    policy, when = writing(base, update.exists, update.ttl), update.when
    if when is not None:
        policy["expressions"] = compiled(when)
    return policy


def writing(base: Policy, exists: Exists, ttl: int) -> Policy:
    """Return the policy of a write without its guard."""
    if exists is Exists.CREATE and ttl == KEEP:  # the server would take the namespace's default-ttl
        ttl = NEVER
    return {**base, "exists": _UPDATE if exists is Exists.UPDATE else _EXISTS[exists], "ttl": _TTL.get(ttl, ttl)}


def guarded(base: Policy, when: Guard | None) -> Policy:
    """Return the policy with a guard, where there is one."""
    return base if when is None else {**base, "expressions": compiled(when)}


def removing(base: Policy, removal: Removal) -> Policy:
    """Return the policy of a removal; one without a guard removes nothing that has expired."""
    return {**base, "expressions": NOT_EXPIRED if removal.when is None else compiled(removal.when)}


class CallTimes:
    """The client's policies, shortened to what is left of the present `Deadline`; without one they stay as they are.

    options: of the store's URL, with the times in milliseconds; the defaults where a client was given ready-made.
    """

    __slots__ = ("_socket", "_total")

    def __init__(self, options: Mapping[str, Any] = NUMBERS) -> None:
        self._socket, self._total = options["socket_timeout"], options["total_timeout"]

    def of_one(self, policy: Policy) -> Policy:
        """Return the policy of a call for one record."""
        warn_of_call()
        left = call_time()
        if left is None or left * 1000 >= self._total:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": min(most, self._socket), "total_timeout": most}

    def of_many(self, policy: Policy) -> Policy:
        """Return the policy of a batch or a query, whose rows may take their time to come as long as they do come."""
        warn_of_call()
        left = call_time()
        if left is None or left * 1000 >= self._socket:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": most, "connect_timeout": most}
