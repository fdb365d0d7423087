"""The time of a call as the client takes it: its own, or what the public verb has left where that is less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...deadline import call_time
from .url import NUMBERS

Policy = dict[str, Any]


class CallTimes:
    """The client's policies, shortened to what is left of the present `Deadline`; without one they stay as they are.

    options: of the store's URL, with the times in milliseconds; the defaults where a client was given ready-made.
    """

    __slots__ = ("_socket", "_total")

    def __init__(self, options: Mapping[str, Any] = NUMBERS) -> None:
        self._socket, self._total = options["socket_timeout"], options["total_timeout"]

    def of_one(self, policy: Policy) -> Policy:
        """Return the policy of a call for one record."""
        left = call_time()
        if left is None or left * 1000 >= self._total:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": min(most, self._socket), "total_timeout": most}

    def of_many(self, policy: Policy) -> Policy:
        """Return the policy of a batch or a query, whose rows may take their time to come as long as they do come."""
        left = call_time()
        if left is None or left * 1000 >= self._socket:
            return policy
        most = max(1, int(left * 1000))
        return {**policy, "socket_timeout": most, "connect_timeout": most}
