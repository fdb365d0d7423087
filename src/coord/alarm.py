"""Waits that know the dead: what ends a wait for parties of whom one has died (docs/protocols.md P9)."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import PartyLost
from ..inputs import checked_kind
from .presence import Group

LOOK_EVERY = 0.5
"""Seconds between two looks at a group whose leases are no shorter than ten times that."""


class Alarm:
    """What ends a wait for parties of whom one has died. For one wait, which begins now.

    group: of which the parties are members.  dead: of those who were lost, as `"farm/member"`, the ones that are waited
    for; asked after the loss was seen.  what: waits, for the message.
    """

    def __init__(self, group: Group, dead: Callable[[Group, set[str]], set[str]], what: str) -> None:
        self._group = checked_kind("alive", group, Group)
        self._watcher, self._dead, self._what = group.watcher(), dead, what
        self._due = float("-inf")

    def check(self) -> None:
        """Look at the group, twice a second or ten times in the shortest lease. Raises `PartyLost`."""
        now = self._group.seams.monotonic()
        if now < self._due:
            return
        seen = self._watcher.look()
        self._due = now + min(LOOK_EVERY, min((one.lease / 10 for one in seen.members.values()), default=LOOK_EVERY))
        lost = {f"{farm}/{name}" for farm, name in seen.lost}
        names = sorted(self._dead(self._group, lost)) if lost else []
        if names:
            raise PartyLost(
                f"{self._what} waits for {', '.join(names)}, who died; start them again and wait again, or give up",
                parties=names,
            )
