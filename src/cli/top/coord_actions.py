"""What a person can do to locks, leaders and latches, each with its consequence in words, said before it is done."""

from __future__ import annotations

from ...coord import CountDownLatch, FencedLock, LeaseElection
from ...errors import NotFound
from ...plain import one_line, shown
from ...store import RecordStore
from ...store.port import Key
from .actions import Action
from .coord import LATCHES, parties_in
from .table import DASH, Row


def break_lock(row: Row, *, at_once: bool) -> Action | str:
    """Return the action that breaks the lock in a row of the page; or why it cannot be done."""
    if row.key is None or row.key[1] != "lock":
        return "only a lock can be broken"
    name, held_by, fence, lease = row.key[2], row.cells[2], row.order[3], row.cells[5]
    if not isinstance(fence, int):
        return f"the record of {one_line(name)} is damaged, so nobody can say who has it"
    if lease == DASH:
        return f"{one_line(name)} is free"
    then = (
        "Whoever waits has it at once, and until the holder renews two may work at a time: only what is written under "
        "fences is safe."
        if at_once
        else f"Whoever waits has it once the lease of {lease} is over, when the holder does not believe in it any more."
    )
    return Action(
        f"break {one_line(name)}{' at once' if at_once else ''} (fence {fence})",
        f"Held by {held_by}. Its next renewal, and its writes under fences that others have passed, are refused. This "
        f"does not stop what the holder does: end its process too. {then}",
        row.key,
        lambda store, deed: _broken(store, deed.who, name, fence, at_once=at_once),
        before=f"held by {held_by}, fence {fence}",
    )


def _broken(store: RecordStore, who: str, name: str, fence: int, *, at_once: bool) -> str:
    if not FencedLock(store, name, owner=who).break_lease(fence, at_once=at_once):
        return f"not broken: {one_line(name)} is not held under the fence {fence} any more"
    return f"broken: {one_line(name)} can be taken {'now' if at_once else 'once its lease is over'}"


def step_down(row: Row) -> Action | str:
    """Return the action that lets the leader in a row of the page step down; or why it cannot be done."""
    if row.key is None or row.key[1] != "election":
        return "only a leader can step down"
    name, leader, epoch, others = row.key[2], row.cells[1], row.order[2], row.order[4]
    if not isinstance(epoch, int) and not leader.startswith("nobody"):
        return f"the record of {one_line(name)} is damaged, so nobody can say who leads"
    if not isinstance(epoch, int) or epoch < 1 or leader.startswith("nobody"):
        return f"nobody leads {one_line(name)}"
    then = (
        "Another candidate is elected once its lease is over."
        if isinstance(others, int) and others > 1
        else "NO OTHER CANDIDATE is there: it is elected again itself, or nobody leads."
    )
    return Action(
        f"step-down {one_line(name)} (epoch {epoch})",
        f"{leader} leads. It learns of it at its next renewal. {then} This does not end what it does: if it hangs, end "
        "its process. Its writes are refused only from when a resource has seen a later epoch, as before.",
        row.key,
        lambda store, deed: _stepped_down(store, deed.who, name, epoch),
        before=f"led by {leader}, epoch {epoch}",
    )


def _stepped_down(store: RecordStore, who: str, name: str, epoch: int) -> str:
    if not LeaseElection(store, name, candidate=who).step_down(epoch):
        return f"not done: nobody leads {one_line(name)} in the epoch {epoch} any more"
    return f"the leader of {one_line(name)} steps down; another one is elected once its lease is over"


def count_down(row: Row, party: str) -> Action | str:
    """Return the action that counts for a party of the latch in a row; or why it cannot be done."""
    if row.key is None or row.key[1] != "latch":
        return "only a latch can be counted down"
    if not party:
        return "give the name of the party"
    name = row.key[2]
    return Action(
        f"count-down {one_line(party)} of {one_line(name)}",
        f"The latch no longer waits for {one_line(party)}, whether or not it has done its work. If it is the last, all "
        "who wait go on. This cannot be undone.",
        (*row.key, party),
        lambda store, _: _counted_down(store, name, party),
        before=f"{row.cells[3]}; missing: {row.cells[2]}",
    )


def _counted_down(store: RecordStore, name: str, party: str) -> str:
    client, _, latch = name.partition("/")
    record = store.get(Key(LATCHES, f"D_LTCH#{client}#{latch}"))
    farms = parties_in(record) if record else {}
    # A party of this name may be in several farms: the farm where it has not counted is meant.
    there = [(farm, one) for farm, parties in farms.items() for one in parties.named if str(one) == party]
    if not there:
        raise NotFound(f"the latch {shown(name)} has no party {shown(party)}")
    missing = [(farm, one) for farm, one in there if one in farms[farm].missing]
    farm, known = (missing or there)[0]
    left = CountDownLatch.get(store, client, latch, farm_id=farm).count_down(party=known)
    where = f" in {farm}" if len(farms) > 1 else ""
    more = (
        f"; it is missing in {', '.join(farm for farm, _ in missing[1:])} too: count it down again"
        if missing[1:]
        else ""
    )
    return one_line(f"counted down {party}: {left} to go{where}{more}")
