"""Groups over two stores: members of two farms who join, renew, leave, die, and are started again; and who watches."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import Group
from latchwork.errors import FencedOut

from .twins import Twins, came_to, time_passes

LEASE = 10.0
FARMS = ("a", "b")
picks = st.integers(0, 5)


@dataclass
class Joined:
    """A membership on both sides, and whether it is over: it left, or another took its place, or it was taken out."""

    twins: tuple
    farm: str
    name: str
    over: bool = False

    @property
    def believed(self) -> bool:
        return not self.twins[0].lost.is_set()


class Groups(Twins):
    """One group of two farms, and who has joined it."""

    def start(self):
        self.joined: list[Joined] = []
        self.lost: set[str] = set()

    @initialize()
    def handles(self):
        self.groups = {
            farm: self.both(lambda store, farm=farm: Group(store, "m", farm_id=farm), self.stores) for farm in FARMS
        }

    def there(self) -> list[Joined]:
        return [one for one in self.joined if not one.over]

    def swept(self) -> None:
        """Whoever is not in the record any more was taken out, which may only be once nobody believes in it."""
        record = self.stores[0].get(("latchwork_groups", "m"))
        for one in self.there():
            if (record.bins if record else {}).get(f"id#{one.farm}", {}).get(one.name) != one.twins[0]._leased._id:
                assert not one.believed
                one.over = True
                self.lost.add(f"{one.farm}/{one.name}")

    @rule(farm=st.sampled_from(FARMS), name=st.sampled_from(("p", "q")), meta=st.none() | st.integers(0, 3))
    def join(self, farm, name, meta):
        if not self.movable:
            farm = FARMS[0]  # farms have fences of their own: equal in memory, where no time passes, not on a server
        answers = self.both(lambda group: group.join(name, meta=meta, lease=LEASE, keep_alive=False), self.groups[farm])
        for one in self.joined:
            if one.farm == farm:
                assert all(former.fence < later.fence for former, later in zip(one.twins, answers, strict=True))
            if (one.farm, one.name) == (farm, name):
                one.over = True
        self.swept()
        self.lost.discard(f"{farm}/{name}")
        self.joined.append(Joined(answers, farm, name))

    @precondition(lambda self: self.joined)
    @rule(pick=picks)
    def renew(self, pick):
        one = self.joined[-1 - pick % len(self.joined)]
        self.swept()
        may = one.believed and not one.over
        assert came_to(self.both(lambda membership: membership.renew(), one.twins)) is (None if may else FencedOut)

    @precondition(lambda self: self.joined)
    @rule(pick=picks)
    def leave(self, pick):
        one = self.joined[-1 - pick % len(self.joined)]
        self.swept()
        late = not one.believed
        assert came_to(self.both(lambda membership: membership.leave(), one.twins)) is (not one.over)
        if late and not one.over:
            self.lost.add(f"{one.farm}/{one.name}")
        one.over = True

    @rule(farm=st.sampled_from(FARMS))
    def look(self, farm):
        told = self.both(lambda group: [(one.farm, one.member) for one in group.members()], self.groups[farm])
        self.swept()
        there = {(one.farm, one.name): one for one in self.there()}
        assert set(told[0]) <= there.keys()
        for place, one in there.items():
            assert place in told[0] or not one.believed, "who is believed in is there"
        lost = self.both(lambda group: group.lost(), self.groups[farm])[0]
        assert lost >= self.lost
        assert all(not there[tuple(name.split("/"))].believed for name in lost - self.lost)

    @time_passes
    @rule(farm=st.sampled_from(FARMS))
    def watch(self, farm):
        """Whoever watches for longer than a lease sees nobody who is not renewed."""
        self.both(lambda group: [(one.kind, one.member.member) for one in group.watch(LEASE + 1)], self.groups[farm])
        self.swept()
        assert all(one.farm != farm for one in self.there())


def test_groups_look_alike_over_both_stores_and_as_their_members_say(agree):
    agree(Groups, "groups")
