"""The time of a call as the client takes it: its own, or what the public verb has left where that is less."""

from __future__ import annotations

from typing import Any

from ...deadline import call_time

SOCKET_TIMEOUT, TOTAL_TIMEOUT = 3000, 5000
"""Milliseconds that a server may be silent, and that a call may take, where a store's URL does not say otherwise."""

Policy = dict[str, Any]


class CallTimes:
    """Shortens the client's policies to what is left of the present `Deadline`; without one they stay as they are.

    socket, total: the store's own times, in milliseconds.
    """

    __slots__ = ("_socket", "_total")

    def __init__(self, socket: int = SOCKET_TIMEOUT, total: int = TOTAL_TIMEOUT) -> None:
        self._socket, self._total = socket, total

    def of_one(self, policy: Policy) -> Policy:
        """The policy of a call for one record."""
        left = call_time()
        if left is None or left * 1000 >= self._total:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": min(most, self._socket), "total_timeout": most}

    def of_many(self, policy: Policy) -> Policy:
        """The policy of a batch or a query, whose rows may take their time to come as long as they do come."""
        left = call_time()
        if left is None or left * 1000 >= self._socket:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": most, "connect_timeout": most}
