"""The promises can fail: each of these broken protocols must be caught by at least one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from latchwork.queue.sharded import shards as pointers
from latchwork.queue.sharded import subqueue as view
from latchwork.queue.sharded import transfer as loading
from latchwork.queue.sharded.pending import PendingSlots
from latchwork.queue.sharded.shards import Shards
from latchwork.queue.sharded.slots import WriteResult
from latchwork.queue.sharded.stamps import StampRules
from latchwork.queue.sharded.upkeep import sweep as sweeping
from latchwork.queue.sharded.upkeep import sweeper
from latchwork.store import Exists, MemoryStore, exists
from latchwork.store.model.expr import Const
from latchwork.store.model.form import plain
from latchwork.testing.clock import ManualClock
from tests.support.broken import breaks

from . import promises
from .world import World

ANYTHING = Const(1).eq(1)


def delete_before_load(patch) -> None:
    def move(source, held, target, envelopes):
        removed = source.remove(held)
        loaded = loading.load(target, envelopes, [h.slot.shard for h in held], moved=True)
        return [r if isinstance(at, pointers.Slot) else at for r, at in zip(removed, loaded, strict=True)]

    patch.setattr(sweeping, "move", move)
    patch.setattr(view, "move", move)


def acknowledge_without_guard(patch) -> None:
    patch.setattr(pointers, "_ALONE", ANYTHING)


def sweep_past_the_boundary(patch) -> None:
    """Empty slots are passed as soon as they were fired."""
    plan = sweeper.Sweeper._plan
    patch.setattr(sweeper.Sweeper, "_plan", lambda *args: replace(task := plan(*args), settled_up_to=task.limit))


def believe_the_server_clock(patch) -> None:
    """A mark is old when the server says so, whatever the leader's own clock says."""
    patch.setattr(sweeper.Sweeper, "_known", lambda *_: 1e9)


def pass_what_is_live(patch) -> None:
    """The sweep pointer does not stop at messages that a consumer still holds."""
    keep = sweeping._Progress.keep

    def careless(self, pointer, stop, what=None):
        if stop is not sweeping.Stop.LIVE:
            keep(self, pointer, stop, what)
        else:
            self.count(what)

    patch.setattr(sweeping._Progress, "keep", careless)


def take_what_is_live(patch) -> None:
    anything = exists("data") & exists("delivery")
    patch.setattr(Shards, "stamp_rules", replace(Shards.stamp_rules, abandoned=anything))


def take_without_stamping(patch) -> None:
    """The sweeper reads and moves, but does not take first."""
    patch.setattr(StampRules, "taking", lambda self, *_: self.reads)


def no_deadline_for_producers(patch) -> None:
    init = Shards.__init__

    def patient(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.sweep = 1e9

    patch.setattr(Shards, "__init__", patient)


def no_tombstone(patch) -> None:
    patch.setattr(Shards, "write_tombstones", lambda self, slots, keep=0: [True] * len(slots))


def no_grace(patch) -> None:
    patch.setattr(view, "GRACE", 0.0)
    patch.setattr(view, "GRACE_POLL", 0.0)


def overwrite_what_is_there(patch) -> None:
    """Data records are written whether or not something is at the pointer."""
    update = pointers.bare_update
    patch.setattr(pointers, "bare_update", lambda *args: structs.replace(plain(update(*args)), exists=Exists.ANY))


def bury_what_is_there(patch) -> None:
    """A tombstone is put whether or not a message has come meanwhile."""
    update = pointers.Update

    def careless(*args, **kwargs):
        return update(*args, **{**kwargs, "exists": Exists.ANY} if kwargs.get("exists") is Exists.CREATE else kwargs)

    patch.setattr(pointers, "Update", careless)


def anything_there_is_mine(patch) -> None:
    """A slot that is taken counts as written."""
    write = Shards.write
    patch.setattr(
        Shards,
        "write",
        lambda self, *args, **kw: [WriteResult.DONE if w is WriteResult.SPENT else w for w in write(self, *args, **kw)],
    )


def no_epoch_on_the_pointer(patch) -> None:
    patch.setattr(sweeping, "_forward", lambda bin, n: ANYTHING)


def count_attempts_at_the_acknowledgement(patch) -> None:
    stamp = Shards.stamp
    patch.setattr(
        Shards, "stamp", lambda self, slots, me, count=True, **how: stamp(self, slots, me, count=False, **how)
    )


def stamp_with_a_new_id_each_time(patch) -> None:
    """A slot that was set aside is stamped again as another delivery."""
    take = PendingSlots.take

    def anew(self, *args):
        me = self._seams.unique()
        return [structs.replace(entry, me=me) for entry in take(self, *args)]

    patch.setattr(PendingSlots, "take", anew)


def forget_the_id_of_a_marked_message(patch) -> None:
    remove = Shards.remove
    patch.setattr(
        Shards,
        "remove",
        lambda self, held: remove(self, [h._replace(envelope=structs.replace(h.envelope, keep_id=0)) for h in held]),
    )


def count_a_failed_load_as_moved(patch) -> None:
    load = loading.load

    def hopeful(queue, envelopes, shards, *, moved=False):
        found = load(queue, envelopes, shards, moved=moved)
        return [at if isinstance(at, pointers.Slot) else pointers.Slot(0, 1) for at in found] if moved else found

    patch.setattr(loading, "load", hopeful)


MUTANTS = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__ and callable(value) and not name.startswith("_")
]


def caught_by(mutant):
    """The first promise that fails under the mutant; None where none does."""
    for promise in promises.ALL:
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            clock = ManualClock(max_sleeps=2_000)
            if breaks(promise, World(MemoryStore(clock), clock)):
                return promise.__name__
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_caught(mutant, proved):
    caught = caught_by(mutant)
    print(f"{mutant.__name__}: caught by {caught}")
    assert caught
    proved("mutants", "sharded, scripted", seeded=1, caught=1)


def test_the_mutants_are_enough():
    assert len(MUTANTS) >= 12
