"""Presence: the members of a group, and the ones that have died (docs/protocols P9).

    group = Group(store, "nightly")
    with group.join("orders", meta={"host": "web-7"}):     # kept alive in the background until the block ends
        work()

    for change in group.watch(timeout=60):
        print(change.kind, change.member.member)           # joined, left, lost

One record for all farms; each farm writes its own bins. A member is an entry with a stamp that each heartbeat makes
larger. A process that has seen the stamp unchanged for the member's whole lease, by its own clock, removes the member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ...deadline import Deadline
from ...errors import (
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    PartyLost,
    RecordTooBig,
    Refused,
    Unavailable,
)
from ...inputs import checked_kind, checked_switch, checked_text, checked_timeout, farm_or_default
from ...plain import shown
from ...retry import OUTAGE, Poll, may_pass, outlive, say_away
from ...seams import Seams
from ...store.connect import as_store
from ...store.model.expr import Const, If, MapSize, exists
from ...store.model.ops import MapRemove
from ...store.once import TokenClock
from ...store.port import Key, RecordStore
from ..contender import TakenLease, remember
from ..farms import checked_farm, checked_ttl, farms_of
from ..lease import Standstill, believed_until, checked_lease
from ..lock import Grant, granted
from ..waits import INFINITY, SOON, Watch, not_before, read
from .layout import (
    ABOUT,
    FENCE,
    GONE,
    GROUPS,
    ID,
    LEFT,
    LOST,
    MAX_GONE,
    MAX_MEMBERS,
    Change,
    FarmMembers,
    Member,
    Place,
    Seen,
    bins_of,
    checked_member,
    checked_meta,
)  # fmt: skip

__all__ = ["Change", "Group", "Member", "Membership", "Watcher"]

WATCH_POLL = Poll(low=0.05, high=0.25, factor=1.5)
"""The pauses of `watch`: 20 reads a second while the group changes, 4 a second after a while."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a group whose leases are no shorter than ten times that."""
TRIES = 20
"""How often a join is tried again because others join or leave under its name."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group's record.

    farm: the farm whose bins hold this process's members.
    ttl: the time to live in seconds that each write sets.
    """

    store: RecordStore
    key: Key
    farm: str
    ttl: int


class Group:
    """A group of members, over all processes and farms. Handles are cheap, safe to share between threads, and pickle
    with their store.

    At most 1,000 members in each farm, and in all as many as one record of 1 MiB has room for: a member takes about 60
    bytes, three times its name, and its meta; a name that has left or was lost takes 35 bytes and the name. So with
    names of 100 bytes and meta of 200, there is room for 1,800 members of all farms.

    farm_id: the farm of this handle's members; default $LATCHWORK_FARM, else "local".
    ttl: the record's time to live in seconds, set by each write; the heartbeats of its members keep it alive. The same
        in all handles: after a write of one with a shorter ttl the record may expire between two heartbeats, and then
        its members count as left.
    """

    def __init__(self, store: RecordStore, name: str, *, farm_id: str | None = None, ttl: int = 86_400) -> None:
        self.name, self.farm = checked_text("name", name), checked_farm(farm_or_default(farm_id))
        self._at = GroupRecord(as_store(store), Key(GROUPS, name), self.farm, checked_ttl(ttl))
        all_seen = _ALL.setdefault(store.token_clock, {})
        self._still = all_seen.get(self._at.key) or Standstill()
        remember(all_seen, self._at.key, self._still)
        self._watcher = self.watcher()

    def __repr__(self) -> str:
        return f"Group({self.name!r}, farm={self.farm!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Group, farm_id=self.farm, ttl=self._at.ttl), (self._at.store, self.name)

    def join(self, member: str, *, meta: Any = None, lease: float = 10.0, keep_alive: bool = True) -> Membership:
        """Join the group under a name. Two store calls; then one for each heartbeat, three in each lease.

        member: the name. If a member of this name exists, the new one replaces it, as after a restart: the former one
            is refused from its next heartbeat on, within a third of its lease.
        meta: information for others: JSON of at most 200 bytes.
        lease: seconds, 0.05 to 86,400, and at most the group's ttl, after which a member that does not renew counts as
            lost.
        keep_alive: renew in the background until it leaves. Keep a reference to the membership: one that nothing refers
            to any more counts as lost.

        Raises `InvalidRequest` if the farm has 1,000 members already (a dead one is a member until some process has
        watched it for its lease), `RecordTooBig` if the group's record has no room for another member,
        `OutcomeUnknown` if it may have joined (it then counts as lost after one lease), `Unavailable`.
        """
        checked_switch("keep_alive", keep_alive)
        text, lease, ttl = checked_meta(meta), checked_lease(lease), self._at.ttl
        if lease > ttl:
            raise InvalidRequest(
                f"lease is {lease:g} s, and the record of {self!r} lives for {ttl} s after each write, so it would "
                "expire between two heartbeats: give the Group a ttl that is longer than its longest lease"
            )
        place = _Membership(self._at, checked_member(member), lease)
        name, claim = f"{self.name}/{member}", place.join(text)
        return granted(partial(Membership, name, place, claim), keep_alive=keep_alive)

    def members(self) -> list[Member]:
        """Return the members, by farm and name. One read.

        A dead member is listed until some process has seen it unchanged for its whole lease: in several calls, which
        may be of several handles, in a `watch`, or in a wait that was given the group. `Member.seen` is the time of the
        last heartbeat.
        """
        return sorted(self._watcher.look().members.values(), key=lambda one: (one.farm, one.member))

    def lost(self) -> set[str]:
        """Return the members that died and have not joined again, as `"farm/member"`. One read.

        A death is seen only by watching, as for `members`.
        """
        return {f"{farm}/{member}" for farm, member in self._watcher.look().lost}

    def watch(self, timeout: float | None = None) -> Iterator[Change]:
        """Yield each change as it is seen: joined, left or lost. The present members come first, as joined.

        It reads 4 to 20 times a second; a member that joins and leaves between two reads is not seen. If the store has
        lost the group's record, its members count as left.

        timeout: seconds after which it ends; None = never.

        Raises `Unavailable` if the store is unavailable at the timeout.
        """
        limit = checked_timeout(timeout)
        self.seams.may_wait("Group.watch", limit)
        return self._watch(Deadline(self.seams, limit), Watcher(self._at, Standstill()))

    @property
    def seams(self) -> Seams:
        """The clocks of its store."""
        return self._at.store.seams

    def watcher(self) -> Watcher:
        """Make a watcher that goes on from what this process has seen, for a wait that ends when a member dies."""
        return Watcher(self._at, self._still)

    def _watch(self, deadline: Deadline, watcher: Watcher) -> Iterator[Change]:
        seams, before = self._at.store.seams, Seen({}, {})
        watch = Watch(self._at.store, self._at.key, (), WATCH_POLL, again=True)
        while True:
            with deadline:  # not around what it yields: the caller's own calls have their own time
                now = outlive(seams, deadline, lambda: watcher.look(watch))
            looked = seams.monotonic()
            yield from now.changes(before)
            before = now
            if deadline.left() == 0:
                return
            end = INFINITY if deadline.end is None else deadline.end
            with deadline:
                watch.wait(end, not_before(looked + WATCH_POLL.high, watcher.due))


class Membership(Grant):
    """One membership. Leaving its `with` block leaves the group; if the block raises, the member is lost at once.

    `lost` is an event that is set as soon as the membership can no longer be relied on: it has run out, another process
    has joined under its name, or it has left. Use `operate` and `seal` for resources that only this member writes:
    a record that this member has written or sealed refuses a former member of this name. A record that it has not may
    still take a write of the former one, until the next heartbeat of that.

    Safe to share between threads: any of them may leave.
    """

    _leased: _Membership
    _failed = False

    def __repr__(self) -> str:
        return f"Membership({self._name!r}, fence={self.fence})"

    def leave(self) -> bool:
        """Leave the group. True if this call ended the membership, False if it had ended already. One store call.

        If its lease was over before, it counts as lost. Raises `OutcomeUnknown` or `Unavailable`: call it again, or the
        member counts as lost after its lease.
        """
        return self.release()

    def fail(self) -> bool:
        """Leave the group and count as lost at once, so that waits for this member end. Otherwise as `leave`."""
        self._failed = True
        return self.release()

    def release(self) -> bool:
        """Leave the group; an alias of `leave`."""
        if self._failed:
            self._leased.ending = LOST  # also where a call of `leave` before this one had no answer
        elif not self.lost.is_set():
            self._leased.ending = LEFT
        return super().release()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._failed = self._failed or error is not None
        super().__exit__(kind, error, trace)


class _Membership:
    """One member's entry in the record, under an id that is never used again."""

    def __init__(self, at: GroupRecord, member: str, lease: float) -> None:
        self.store, self.owner, self.lease = at.store, member, lease
        self._key, self._bins = at.key, bins_of(at.farm, at.ttl)
        self._id, self.ending = "", LOST

    def join(self, meta: str) -> TakenLease:
        """Join, and replace a present member of this name. The guard contains what was read of that member, so a late
        or duplicate attempt is refused.
        """
        for _ in range(TRIES):
            claim = self._try(meta)
            if claim is not None:
                return claim
        raise Unavailable(f"others join and leave as {self.owner!r} all the time: give each member a name of its own")

    def _try(self, meta: str) -> TakenLease | None:
        seams, farm = self.store.seams, self._bins.farm
        self._id = seams.unique()
        stored = self._stored(ID, GONE, FENCE)
        ids, gone = stored.ids, stored.gone
        if self.owner not in ids and len(ids) >= MAX_MEMBERS:
            raise InvalidRequest(
                f"the group has {len(ids)} members in farm {shown(farm)}, the limit is {MAX_MEMBERS}: use several; if "
                "most of them are dead, let one process watch() it, which removes them"
            )
        began = seams.boottime()
        update = self._bins.join.fill(
            self._key, member=self.owner, id=self._id, lease=round(self.lease * 1000), meta=meta,
            before=ids.get(self.owner, ""), gone=gone.get(self.owner, ""),
        )  # fmt: skip
        try:
            (fence,) = self.store.repeat(update)
        except Refused as refusal:
            return self._recognised() if refusal.details["doubt"] else None
        except RecordTooBig as failure:
            raise RecordTooBig(
                f"no room for {shown(self.owner)} with {len(meta.encode())} bytes of meta: one record of 1 MiB "
                f"holds the members of all farms, {len(ids)} in farm {shown(farm)}; use several groups, or shorter "
                f"names and less meta ({failure})",
                key=self._key,
            ) from failure
        claim = TakenLease(int(fence), believed_until(began, self.lease))
        return claim if seams.boottime() < claim.until else self._confirmed(claim.fence)

    def _recognised(self) -> TakenLease | None:
        """Return the claim if an earlier attempt in doubt has joined, else None. For a refusal after doubt."""
        try:
            stored = self._stored(ID, ABOUT)
        except LatchworkError as failure:
            raise OutcomeUnknown(
                f"{self.owner!r} may have joined, and the group cannot be asked; if it has, it counts as lost after "
                f"{self.lease} s",
                key=self._key,
            ) from failure
        if stored.ids.get(self.owner) != self._id or self.owner not in stored.about:
            return None
        return self._confirmed(stored.about[self.owner][0])

    def _stored(self, *prefixes: str) -> FarmMembers:
        """Read these bins of the farm. One call. Raises `Corrupt`."""
        farm = self._bins.farm
        record = self.store.get(self._key, *(prefix + farm for prefix in prefixes))
        return farms_of(FarmMembers, self._key, record.bins if record else {}).get(farm, FarmMembers())

    def _confirmed(self, fence: int) -> TakenLease | None:
        try:
            return self.renew(fence)
        except (Refused, NotFound):
            return None

    def renew(self, fence: int) -> TakenLease:
        """Send a heartbeat. Raises `Refused` or `NotFound` if it is not a member any more."""
        began = self.store.seams.boottime()
        self.store.repeat(self._bins.heartbeat.fill(self._key, member=self.owner, id=self._id))
        return TakenLease(fence, believed_until(began, self.lease))

    def release(self, fence: int) -> bool:  # noqa: ARG002 - the id names the membership
        """Leave the group. False if it was not a member any more."""
        ops = self._bins.gone(self.owner, self._id, self.ending)
        guard = self._bins.held.bind(member=self.owner, id=self._id)
        try:
            self.store.operate(self._key, *ops, when=guard, ttl=self._bins.ttl, repeatable=True)
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        return True


_ALL: WeakKeyDictionary[TokenClock, dict[Key, Standstill[Place]]] = WeakKeyDictionary()
"""What the handles and waits of a process have seen of each group of a store. A handle may live for one call only, as
for one web request, and a wait be shorter than a lease: by itself it would never see a dead member stand still for that
long."""


class Watcher:
    """An observer of a group. It remembers since when each member is unchanged, and removes the dead ones.

    still: what was seen before.
    """

    def __init__(self, at: GroupRecord, still: Standstill[Place]) -> None:
        self._store, self._key, self._farm, self._ttl = at.store, at.key, at.farm, at.ttl
        self._still = still
        self._members: dict[Place, Member] = {}

    def due(self) -> float:
        """Return when (seconds, monotonic) a member may be lost, if nothing changes before."""
        members = self._members.items()
        return SOON + min((self._still.since(place) + one.lease for place, one in members), default=INFINITY)

    def look(self, watch: Watch | None = None) -> Seen:
        """Return the present members, and how others ended. One read, and one call for each dead member of this farm.

        watch: the wait that this look is part of.

        An unchanged member of another farm counts as lost here, but is not removed, as only its own farm writes its
        bins: it has died, or its farm is cut off.
        """
        answer = watch.read() if watch else read(self._store, self._key, ())
        seen = Seen.of(self._key, answer.record.bins if answer.record else {})
        members = self._members = dict(seen.members)
        stamps = {place: (one.id, one.stamp) for place, one in members.items()}
        self._still.see(stamps, answer.answered)
        for place, one in members.items():
            # What was read was so when it was asked for, however long it took to come.
            is_dead = self._still.lasts(place, stamps[place], one.lease, answer.asked)
            if is_dead and (one.farm != self._farm or self._remove(one)):
                seen.without(one)
        self._tidy(seen)
        return seen

    def _remove(self, one: Member) -> bool:
        """Remove a dead member. False if it has sent a heartbeat or ended in the meantime: the next read shows that."""
        bins = bins_of(one.farm, self._ttl)
        guard = bins.still.bind(member=one.member, id=one.id, stamp=one.stamp)
        ops = bins.gone(one.member, one.id, LOST)
        try:
            self._store.operate(self._key, *ops, when=guard, ttl=self._ttl, repeatable=True)
        except (Refused, NotFound):
            return False
        return True

    def _tidy(self, seen: Seen) -> None:
        """Remove entries of ended members whose names were not used again, if there are too many; first the ones that
        left.
        """
        gone = [place for place in seen.gone if place[0] == self._farm and place not in seen.members]
        if len(gone) <= 2 * MAX_GONE:
            return
        gone.sort(key=lambda place: seen.gone[place][0] == LOST)
        bin = GONE + self._farm
        many = If(exists(bin), MapSize(bin), Const(0)) > MAX_GONE
        names = tuple(name for _, name in gone[: len(gone) - MAX_GONE])
        try:
            self._store.operate(self._key, MapRemove(bin, names), when=many, ttl=self._ttl, repeatable=True)
        except (Refused, NotFound):
            return  # another process has removed it


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
        self._failed = 0

    def check(self, deadline: Deadline) -> None:
        """Look at the group, twice a second or ten times in the shortest lease. Raises `PartyLost`.

        deadline: of the wait. While the group cannot be asked, the wait goes on: what it waits for may come, and may be
        in another store.
        """
        seams = self._group.seams
        now = seams.monotonic()
        if now < self.due:
            return
        try:
            seen = self._watcher.look()
        except LatchworkError as failure:
            if not may_pass(failure):
                raise
            say_away(seams, deadline, failure)
            self._failed += 1
            self.due = seams.monotonic() + OUTAGE.pause(self._failed, seams)
            return
        self._failed = 0
        self.due = now + min(LOOK_EVERY, min((one.lease / 10 for one in seen.members.values()), default=LOOK_EVERY))
        lost = {f"{farm}/{name}" for farm, name in seen.lost}
        names = sorted(self._dead(self._group, lost)) if lost else []
        if names:
            raise PartyLost(
                f"{self._what} waits for {', '.join(names)}, who died; start them again and wait again, or give up",
                parties=names,
            )
