"""The end of a wait for parties as soon as one of them has died (docs/protocols P9)."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import PartyLost
from ...inputs import checked_kind
from .presence import Group

LOOK_EVERY = 0.5
"""Seconds between two looks at a group whose leases are no shorter than ten times that."""


class Alarm:
    """A check that ends one wait as soon as a party has died. The wait begins when this object is made.

    group: the group that the parties are members of.
    dead: given the lost members, as `"farm/member"`, returns the ones that the wait needs. Called after a loss was
        seen.
    what: what waits, for the message.
    """

    def __init__(self, group: Group, dead: Callable[[Group, set[str]], set[str]], what: str) -> None:
        self._group = checked_kind("alive", group, Group)
        self._watcher, self._dead, self._what = group.watcher(), dead, what
        self.due = float("-inf")
        """When the next look at the group is due (seconds, monotonic)."""

    def check(self) -> None:
        """Look at the group, twice a second or ten times in the shortest lease. Raises `PartyLost`."""
        now = self._group.seams.monotonic()
        if now < self.due:
            return
        seen = self._watcher.look()
        self.due = now + min(LOOK_EVERY, min((one.lease / 10 for one in seen.members.values()), default=LOOK_EVERY))
        lost = {f"{farm}/{name}" for farm, name in seen.lost}
        names = sorted(self._dead(self._group, lost)) if lost else []
        if names:
            raise PartyLost(
                f"{self._what} waits for {', '.join(names)}, who died; start them again and wait again, or give up",
                parties=names,
            )
