"""Groups: members who stay a while, are paused, die, leave, and are started again; and who watches them."""

from __future__ import annotations

from latchwork.coord import Group, Membership
from latchwork.coord.presence.layout import GROUPS
from latchwork.store import Add, Key, Once

from ..checkers import presence as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

RECORD = Key(GROUPS, "group")
NAMES = ("p", "q", "r")


class Presence(Scenario):
    """Three names of one farm, each of which is somebody's now and then; one or two watch."""

    name = "presence"
    lease = 1.0
    kinds = WITH_THREADS
    horizon = 20.0
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE, Kind.EXPIRY,
    )  # fmt: skip

    def setup(self) -> None:
        self.changes = self.server.watch(RECORD)
        self.writes = {name: self.server.watch(Key("sim", name)) for name in NAMES}
        self.seen: list[tuple[float, str, str, str]] = []

    def people(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            self.person(f"{NAMES[number % 3]}{number}", self._member)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"watcher{number}", self._watcher)

    def _member(self, process: Process, store: SimStore) -> None:
        group, name = Group(store, "group", farm_id="a"), process.name[0]
        for _ in range(self.rng.randint(1, 3)):
            lease = self.lease * self.rng.choice((0.5, 1.0, 2.0))
            alive = self.rng.random() < 0.6
            entry = self.call(
                process, "join", lambda lease=lease, alive=alive: group.join(name, lease=lease, keep_alive=alive)
            )
            if entry.ok:
                self._stay(process, entry.result, name)
            self.idle(process, self.rng.choice((0.0, 0.1, 1.0)))

    def _stay(self, process: Process, membership: Membership, name: str) -> None:
        id, fence = membership._leased._id, membership.fence
        for _ in range(self.rng.randint(1, 3)):
            self.idle(process, self.rng.choice((0.0, 0.3, 1.2)))
            self.call(process, "check", membership.check, id)
            add = Add("n", 1)
            self.call(
                process, "write", lambda add=add: membership.operate(Key("sim", name), add, once=Once(64)), name, fence
            )
            if self.rng.random() < 0.4:
                self.call(process, "renew", membership.renew, id)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            self.call(process, "leave", membership.leave, id)

    def _watcher(self, process: Process, store: SimStore) -> None:
        group = Group(store, "group", farm_id="a")
        for _ in range(self.rng.randint(1, 2)):
            self.call(process, "watch", lambda: self._told(group, self.rng.choice((1.0, 4.0))))
            self.call(process, "lost", group.lost)

    def _told(self, group: Group, timeout: float) -> None:
        for change in group.watch(timeout):
            self.seen.append((self.world.now, change.kind, change.member.member, change.member.id))

    def settle(self) -> None:
        """Everybody has left or died by now: whoever watches for long enough sees nobody there."""
        group = Group(self.operator_store, "group", farm_id="a")
        self.call(self.operator, "watch", lambda: self._told(group, 8 * self.lease))
        self.final = self.call(self.operator, "members", group.members)

    def check(self) -> None:
        promises.check(self)
