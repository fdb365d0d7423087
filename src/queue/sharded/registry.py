"""The queues of a client in a farm: made, found, listed, deactivated and kept up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from ...coord.lease import checked_owner
from ...errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unreadable,
)
from ...forks import reset_in_child
from ...inputs import checked_seconds, checked_store_name, checked_switch, checked_text, farm_or_default, is_int
from ...logs import Log
from ...plain import shown
from ...store import Key, Put, Record, RecordStore, Touch
from ...store.connect import as_store
from ...store.decode import MAX_COUNTER
from ...store.model.record import checked_key
from ..rows import read_each
from .active import IDLE_LOOK
from .bell import Bell
from .config import QueueConfig, group_config
from .delayed.schedules import MAX_NAME, Schedule, ScheduleRecords, ScheduleState
from .group import QueueGroup
from .groups.making import DROPPED, MADE, Start, checked_start, complete
from .parts import parts_of
from .queue import ShardedQueue
from .record import (
    LIVE_BINS,
    LastSweep,
    Live,
    QueueRecords,
    again_ops,
    as_made_before,
    as_switched,
    concurrency_ops,
    config_of,
    differences,
    last_sweep_of,
    live_of,
    resume_to,
    retry_ops,
)

log = Log(__name__)

AnyQueue: TypeAlias = ShardedQueue | Any
"""A queue; by the name of a group a `QueueGroup`, which has the verbs of a queue and refuses some. Not a union of both:
each caller would have to ask which it is, though the name that it gave says so."""

made_here: Counter[str] = Counter()
"""How many queues and groups this process has made, by client: its upkeep looks for new ones where that has changed."""
FIRST_REFRESH, REFRESH = 60.0, 300.0
"""Seconds until the first refresh, and between later ones."""


class QueueRegistry:
    """The way to the sharded queues of `client_id` in a farm. Safe to share between threads.

    farm_id: None = `$LATCHWORK_FARM`, else "local". Of two farms in one store, none may have the other's id and "_" as
        its beginning: the farm "a" with the client "b_c" has the queues of the farm "a_b" with the client "c".
    idle_look: seconds, 0.05 to 60, after which consumers of an idle queue look at its pointers though its bell was not
        rung, as after a publisher died, or if another library publishes. Each look costs a process one call, and a
        record a shard.

    It pickles with its store. Nothing is read or written before the first call. One queue is one object here, shared by
    all who ask for it. If an object was replaced (by one with another codec, or because the queue was created again),
    it is kept up to date as long as it is referred to.
    """

    def __init__(
        self, store: RecordStore, client_id: str, *, farm_id: str | None = None, idle_look: float = IDLE_LOOK
    ) -> None:
        self.idle_look = checked_seconds("idle_look", idle_look, 0.05, 60)
        self.store, self.client_id = as_store(store), client_id
        self.farm_id = farm_or_default(farm_id)
        self.records = QueueRecords(
            store, checked_store_name("client_id", client_id), checked_store_name("farm_id", self.farm_id)
        )
        # The index on a set is named after it, and its name has the same limit.
        for set_name in (f"{self.records.set}_active", f"{client_id}_data_set"):
            checked_key(Key(set_name, "-"))
        self.bell = Bell(store, Key(f"{client_id}_meta_set", f"@{self.farm_id}_BELL"))
        """Rung by who has made a queue."""
        self._schedules = ScheduleRecords(store, client_id, self.farm_id)
        self._queues: dict[str, AnyQueue] = {}
        # Every object of a name that is still referred to: also the ones that `_queues` no longer has.
        self._held: dict[str, WeakSet[AnyQueue]] = {}
        self.reset_after_fork()
        reset_in_child(self)
        self._indexed = False
        self.next_refresh = store.seams.monotonic() + FIRST_REFRESH

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = self.store.seams.lock()

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(QueueRegistry, farm_id=self.farm_id, idle_look=self.idle_look)
        return make, (self.store, self.client_id)

    def __repr__(self) -> str:
        return f"QueueRegistry({self.store!r}, {self.client_id!r}, farm_id={self.farm_id!r})"

    def create(self, config: QueueConfig) -> ShardedQueue:
        """Return the queue of these settings: a new one, or the existing one with equal settings (activated again if it
        was not active).

        To create it, or to `get` it while it is active, is to use it: its record is kept alive, if the store can be
        written. A queue that is created again under an old name continues from the pointers that it finds. Raises
        `AlreadyExists`, naming the settings that differ, if the name is taken. Settings that are today's defaults do
        not differ from the defaults of an earlier version: the queue keeps what it was made with, and the log says so.
        A `retry` that was switched by `set_retry` stays so too, whatever the settings say.
        """
        if not isinstance(config, QueueConfig):
            raise InvalidRequest(f"config is a {type(config).__name__}; give a QueueConfig(name, ...)")
        self._ensure_index()
        record = self.records.find(config.name)
        if record is None:
            self._create(config)
            self._notify_upkeep()
            record = self.records.record(config.name)
        bins = record.bins
        if "groupOf" in bins:
            raise AlreadyExists(f"{config.name!r} is a group of the queue {bins['groupOf']!r}: use another name")
        found = config_of(config.name, bins)
        config = self._as_made_before(self._as_switched(config, bins), found)
        unequal = differences(config, found)
        if unequal:
            raise AlreadyExists(
                f"there is a queue {config.name!r} with other settings ({'; '.join(unequal)}): use its settings, or "
                "another name",
                queue=config.name,
            )
        if bins.get("active") != "true":
            self.records.change(config, Put("active", "true"))
            bins["active"] = "true"
        else:
            self.records.renew(config, record)
        return self._adopt(config, bins, asked=True)

    def _as_switched(self, wanted: QueueConfig, bins: Mapping[str, Any]) -> QueueConfig:
        """Return the settings to use: `set_retry` prevails over the program."""
        kept = as_switched(wanted, bins)
        if kept is not wanted and wanted.name not in self._queues:
            log.warning(
                "retry of queue %s was switched to %s after it was made, and stays so, though the program says %s",
                wanted.name, kept.retry, wanted.retry,
            )  # fmt: skip
        return kept

    def _as_made_before(self, wanted: QueueConfig, found: QueueConfig) -> QueueConfig:
        """Return the settings to use: a queue that was made with the defaults of an earlier version keeps them."""
        kept = as_made_before(wanted, found)
        if kept is not wanted and wanted.name not in self._queues:
            log.warning(
                "queue %s was made with the defaults of an earlier version, and keeps them: %s%s",
                wanted.name,
                "; ".join(differences(wanted, found)),
                ""
                if kept.retry or kept.shovel
                else "; failed messages stay in the sideline, as nothing retries them: "
                "`latchwork queue set NAME --retry` changes that",
            )
        return kept

    def get(self, name: str) -> AnyQueue:
        """Return the queue of this name, active or not. Raises `NotFound`, which names a similar queue if there is one;
        that takes one more call.
        """
        queue = self._queues.get(checked_text("name", name))
        if queue is not None:
            if queue.live.active:
                queue.used = True
                self.refresh_if_due()
            return queue
        record = self.records.find(name)
        if record is None:
            similar: list[str] = []
            with suppress(LatchworkError):  # where the store does not say, none
                active = self.store.query(self.records.set, "active", "true")
                similar = get_close_matches(name, [str(one.key.name) for one in active], n=1)
            raise self.records.absent(name, next(iter(similar), None))
        queue = self._adopt(config_of(name, record.bins), record.bins)
        if queue.live.active:
            self.records.renew(queue.config, record)
        return queue

    def publishable(self, name: str) -> ShardedQueue:
        """Return the queue of this name, as `get`. Raises `InvalidRequest` for a group, which takes no messages."""
        queue: ShardedQueue = self.get(name).for_publishing()
        return queue

    def queues(self, active: bool | None = True) -> list[AnyQueue]:
        """Return all queues that are active, or not, or (None) both, as the store has them now, by name."""
        return [queue for queue, _ in self.listed(active=active)]

    def listed(self, *, active: bool | None = True) -> list[tuple[AnyQueue, dict[str, Any]]]:
        """Return the queues, each with its record; unreadable ones are left out, with a warning in the log."""
        found, unreadable = self.scan(active=active)
        for failure in unreadable.values():
            log.warning("left out: %s", failure)
        return found

    def scan(
        self, *, active: bool | None = True
    ) -> tuple[list[tuple[AnyQueue, dict[str, Any]]], dict[str, Unreadable]]:
        """Return the queues, each with its record, and the errors of unreadable ones by name."""
        if active is not None:
            checked_switch("active", active)
        self._ensure_index()
        wanted = ("true", "false") if active is None else ("true" if active else "false",)
        # By name, as one that is deactivated between the two queries is in both.
        try:
            query = [one for value in wanted for one in self.store.query(self.records.set, "active", value)]
        except LatchworkError:
            self._indexed = False  # a store that came back empty may have lost it: the next one makes it again
            raise
        records = {one.key.name: one for one in query}
        found, unreadable = [], {}
        for name, record in sorted(records.items()):
            try:
                found.append((self._adopt(config_of(name, record.bins), record.bins), record.bins))
            except Unreadable as failure:
                unreadable[name] = failure
        return found, unreadable

    def deactivate(self, name: str) -> None:
        """Stop publishing to the queue, once each process has refreshed. It is consumed and swept until it is empty.

        Raises `NotFound`.
        """
        queue = self.get(name)
        self.records.change(queue.config, Put("active", "false"))
        self._reread(queue)

    def activate(self, name: str) -> None:
        """Publish to a deactivated queue again, once each process has refreshed; nothing else changes.

        Raises `NotFound`; `InvalidRequest` for a group, which comes back by `ShardedQueue.group`.
        """
        queue = self.get(name)
        if queue.reader:
            raise InvalidRequest(
                f"{shown(name)} is a group: ask for it again, by `ShardedQueue.group` or `latchwork queue group "
                "create`, which activates it"
            )
        self.records.change(queue.config, Put("active", "true"))
        self._reread(queue)

    def set_retry(self, name: str, retry: bool = True) -> AnyQueue:
        """Change whether failed messages of a queue, or of a group, are tried again; return it. Three calls.

        For a queue that was made by an earlier version, which did not retry. What is in its sideline comes back too,
        within a minute or two, while a process of this version does the upkeep. Objects of the queue that are in use,
        here and in other processes, go on as before until they are made again: what fails there goes into the sideline,
        and comes back from there. A program that creates the queue gets it as it is now, whatever its settings say of
        `retry`; its log says so.

        Raises `NotFound`; `InvalidRequest` for a queue with a shovel, which brings failed messages back already.
        """
        checked_switch("retry", retry)
        config = config_of(name, self.records.read(checked_text("name", name)))
        if retry and config.shovel is not None:
            raise InvalidRequest(f"queue {shown(name)} has a shovel, which brings failed messages back already")
        self.records.change(config, *retry_ops(retry))
        bins = self.records.read(name)
        return self._adopt(config_of(name, bins), bins)

    def refresh(self) -> None:
        """Adopt queues made elsewhere, drop expired ones, follow changed settings, keep the queues in use alive.

        Queues in use call it themselves: first after a minute, then every 5 minutes.
        """
        self.next_refresh = self.store.seams.monotonic() + REFRESH
        found = {queue.name for queue in self.queues(active=None)}
        # Groups (`orders@audit`) before their queue: what was dropped shows while the queue is as it was left.
        for name in sorted(self._adopted().keys() - found, reverse=True):
            self._look_again(name)
        for queue in self._adopted().values():
            with self._lock:
                used = [*filter(lambda one: one.used, self._held[queue.name])]
            if used:
                with suppress(Corrupt):  # only this one cannot be kept alive
                    self.records.change(queue.config, Touch())
            for one in used:
                one.used = False

    def refresh_if_due(self) -> None:
        """Refresh where it is time to; a failure is logged, and tried again when it is time again."""
        if self.store.seams.monotonic() < self.next_refresh:
            return
        try:
            self.refresh()
        except LatchworkError as failure:
            log.warning("the queues of %s could not be refreshed: %s", self.records.set, failure)

    def last_sweep(self, name: str) -> LastSweep:
        """Return when the queue was last swept with success, and when without. Raises `NotFound`."""
        return last_sweep_of(self.records.read(name, "lastSweep"))

    # ---- schedules

    def schedule(self, schedule: Schedule) -> None:
        """Publish a message again and again, each tick once. A schedule of that name is replaced, and its ticks begin
        now; if it is paused, it stays so. If an equal one is there, nothing changes: ticks that are due come.

        The process that does the upkeep of this client publishes: one in which a worker or a consumer runs. It notices
        the schedule within 5 s; where more than one tick was due by then, `missed` says which are published. Three
        calls. Raises `NotFound` if the queue does not exist.
        """
        if not isinstance(schedule, Schedule):
            raise InvalidRequest(f"schedule is a {type(schedule).__name__}; give a Schedule(name, queue=...)")
        queue = self.publishable(schedule.queue)
        if queue.codec.name == "bytes":
            raise InvalidRequest(
                f"queue {shown(schedule.queue)} takes bytes, and a schedule's payload is JSON: use another"
            )
        queue.codec.encode(schedule.payload)  # raises what each tick would
        self._schedules.put(schedule)

    def unschedule(self, name: str) -> None:
        """Forget a schedule; what it has published stays. One call. Raises `NotFound`."""
        self._schedules.remove(checked_text("name", name))

    def schedules(self) -> list[Schedule]:
        """Return the schedules of this client in this farm, by name. One call. Raises `Corrupt` for one that is
        damaged.
        """
        specs, _ = self._schedules.read()
        return [Schedule.from_json(name, specs[name]) for name in sorted(specs)]

    def schedule_states(self) -> list[ScheduleState]:
        """Return the schedules of this client in this farm, by name, each with its last tick, and who has paused it
        when. One call. Raises `Corrupt` for one that is damaged.
        """
        return self._schedules.stored().states()

    def pause_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Publish no tick of a schedule that is due from now on, until it is resumed; False where it is paused already.

        A tick that is due before, by the server's clock, may still be published. Ticks in between are never published,
        whatever `missed` says. It stays paused if a schedule of its name is put again; not if it is removed first.

        by: who pauses it, for people; None = this process.

        One call, or two. Raises `NotFound`. After `OutcomeUnknown` call it again: it is paused once.
        """
        checked_text("name", name)
        who = self.store.seams.process_name() if by is None else checked_text("by", by)
        return self._schedules.pause(name, who[:MAX_NAME])

    def resume_schedule(self, name: str) -> bool:
        """Publish the ticks of a paused schedule that are due from now on; False where it is not paused. It is noticed
        as a new one is: see `schedule`.

        To have a run for the ones in between, `trigger_schedule`. One call, or two. Raises `NotFound`.
        """
        return self._schedules.resume(checked_text("name", name))

    def trigger_schedule(self, name: str) -> str:
        """Publish the message of a schedule once more, now; return its id, which is the schedule's name, `@`, and the
        server's time in ms.

        Its ticks stay as they are; it may be paused. Three calls or four. Raises `NotFound`, what `publish` raises, and
        `Corrupt` if it is damaged. After `OutcomeUnknown` it may have been published: `queue.status(id)` says so, with
        the id that its `details` have as `message_id`.
        """
        checked_text("name", name)
        found = self._schedules.stored()
        if name not in found.specs:
            raise NotFound(f"no schedule {name!r} in {self.store.where}: see registry.schedules()", name=name)
        schedule = found.state(name).schedule
        message_id = f"{name}@{found.now.isoformat(timespec='milliseconds')}"  # no tick's: that has no ms
        try:
            return self.publishable(schedule.queue).publish(schedule.payload, message_id=message_id)
        except OutcomeUnknown as failure:
            failure.details["message_id"] = message_id
            raise

    # ---- groups

    def make_group(self, queue: ShardedQueue, name: str, start: Start, settings: Mapping[str, Any]) -> QueueGroup:
        """Make a group, as `ShardedQueue.group` describes."""
        wanted = group_config(queue.config, name, self.store.seams.unique()[-12:], settings)
        checked_start(start)
        self._ensure_index()
        record = self.records.find(wanted.name)
        if record is None:
            self.records.create(wanted, [[0] * wanted.shards] * 3)  # nobody has had this tag before
            self._notify_upkeep()
            record = self.records.record(wanted.name)
        config = config_of(wanted.name, record.bins)
        if config.of != queue.name or config.shards != queue.config.shards:
            what = f"is a group of the queue {config.of!r}" if config.of else "is a queue"
            what = f"was made for {config.shards} shards" if config.of == queue.name else what
            raise AlreadyExists(f"{wanted.name!r} {what}: use another name, or drop it")
        gone = Refused(f"the group {name!r} of queue {queue.name!r} is being dropped: ask for it again later")
        if DROPPED in record.bins:
            raise gone
        if record.bins.get("active") != "true":
            self.records.change(config, Put("active", "true"))
            record.bins["active"] = "true"
        group = cast(QueueGroup, self._adopt(config, record.bins))
        if MADE in record.bins:
            self.records.renew(config, record)
            return group
        oldest = [] if start == "now" else self._oldest(queue)
        if not complete(self.records, config, group.pointers.shared, start, oldest):
            raise gone
        return group

    def _oldest(self, queue: ShardedQueue) -> list[int]:
        """Return for each shard of a queue the pointer up to which neither its consumers nor its groups wait for
        anything.
        """
        swept = [self.records.read(queue.name, "sweepPointers").get("sweepPointers")]
        swept += [bins.get("sharedSweep") for _, bins in self._groups(queue) if MADE in bins]
        return [min(_swept(one, n) for one in swept) for n in range(queue.config.shards)]

    def _groups(self, queue: ShardedQueue) -> list[tuple[QueueGroup, dict[str, Any]]]:
        listed = self.listed(active=None)
        return [(cast(QueueGroup, one), bins) for one, bins in listed if one.config.of == queue.name]

    def groups_of(self, queue: ShardedQueue) -> list[QueueGroup]:
        """Return what `ShardedQueue.groups` returns."""
        return [group for group, bins in self._groups(queue) if MADE in bins and DROPPED not in bins]

    def made_again(self, group: QueueGroup) -> QueueGroup | None:
        """Return the group that was made under the name of one that was dropped; None while there is none. One call."""
        record = self.records.find(group.name)
        if record is None or MADE not in record.bins or DROPPED in record.bins:
            return None
        config = config_of(group.name, record.bins)
        if config.of != group.queue_name or config.tag == group.config.tag:
            return None
        return cast(QueueGroup, self._adopt(config, record.bins))

    def forget(self, group: QueueGroup) -> None:
        """Forget a group that was dropped."""
        with self._lock:
            if self._queues.get(group.name) is group:
                del self._queues[group.name]

    # ---- the number of consumers

    def set_concurrency(self, queue: AnyQueue, n: int, by: str | None = None) -> None:
        """Store how many consumers are wanted, when that was asked for, and by whom; None = by this process."""
        self.records.change(queue.config, *concurrency_ops(n, checked_owner(by, self.store.seams)))
        queue.pointers.bell.announce()
        self._reread(queue)

    def resume(self, queue: AnyQueue, by: str | None = None) -> None:
        """Store the number of consumers that was last wanted, at least 1."""
        wanted = resume_to(queue.name, self.records.read(queue.name, "settings"))
        self.set_concurrency(queue, wanted or queue.config.concurrency or 1, by)

    def follow(self, queues: Sequence[AnyQueue]) -> None:
        """Read what may have changed in the settings of these queues, for all who use them in this process. One call,
        none for no queues.

        A queue whose record is gone or damaged keeps its settings: `refresh` deals with it.
        """
        rows = read_each(self.store, [self.records.key(queue.name) for queue in queues], *LIVE_BINS)
        for queue, row in zip(queues, rows, strict=True):
            if isinstance(row, Record):
                with suppress(Unreadable):
                    live = live_of(queue.name, row.bins)
                    with self._lock:
                        self._update_live(queue.name, live)

    # ----

    def _notify_upkeep(self) -> None:
        """Have the process that does the upkeep list the queues again soon."""
        made_here[self.client_id] += 1
        self.bell.ring()

    def _create(self, config: QueueConfig) -> None:
        parts = parts_of(self.store, self.client_id, config)
        self.records.create(config, [part.settled() for part in parts])

    def _ensure_index(self) -> None:
        if not self._indexed:
            self.store.ensure_index(self.records.set, "active")
            self._indexed = True

    def _adopted(self) -> dict[str, AnyQueue]:
        with self._lock:
            return dict(self._queues)

    def _look_again(self, name: str) -> None:
        """Drop a queue that was not listed if it does not exist; one that was activated meanwhile was in no listing."""
        with suppress(Unreadable, Corrupt):  # which the listing has logged
            record = self.records.find(name)
            if record is not None:
                self._adopt(config_of(name, record.bins), record.bins)
                return
            with self._lock:  # since the last refresh, and not deactivated
                is_used = any(one.used and one.live.active for one in self._held.get(name, ()))
                queue = self._queues.get(name)
            if queue is None:  # another thread has dropped it meanwhile
                return
            if is_used and not queue.was_dropped():
                self._make_again(queue)
                return
            with self._lock:
                self._queues.pop(name, None)
                self._held = dict(filter(lambda held: held[1], self._held.items()))

    def _make_again(self, queue: AnyQueue) -> None:
        """Write the record of a queue again. A queue in use keeps its record alive, so if it is missing, the store has
        lost it.
        """
        name, config, live = queue.name, queue.config, queue.live
        log.warning(
            "the record of queue %s in %s is gone though the queue is in use, as where the store came back empty: it "
            "is made again, with the settings of this process; messages that were lost with the store are lost",
            name,
            self.records.set,
        )
        self._create(config)
        queue.make_again()
        self.records.change(config, *again_ops(live))
        self._adopt(config, self.records.read(name))

    def _reread(self, queue: AnyQueue) -> None:
        live = live_of(queue.name, self.records.read(queue.name))
        with self._lock:
            self._update_live(queue.name, live)

    def _update_live(self, name: str, live: Live) -> None:
        for queue in self._held.get(name, ()):
            queue.live = live

    def _adopt(self, config: QueueConfig, bins: dict[str, Any], *, asked: bool = False) -> AnyQueue:
        """Return the one object of this queue, with what was just read; `asked`: and with the codec of `config`."""
        live = live_of(config.name, bins)
        with self._lock:
            queue = self._queues.get(config.name)
            other_codec = asked and queue is not None and queue.config.codec != config.codec
            # Another queue, or a group that was dropped and made again.
            other = queue is not None and (differences(queue.config, config) or queue.config.tag != config.tag)
            if queue is None or other_codec or other:
                queue = self._queues[config.name] = self._object(config, live)
            self._update_live(config.name, live)
            queue.made_at = bins.get("createdAt")
            return queue

    def _object(self, config: QueueConfig, live: Live) -> AnyQueue:
        """Return the object with exactly these settings if it is still referred to, or a new one."""
        held = self._held.setdefault(config.name, WeakSet())
        queue = next((one for one in held if one.config == config), None)
        if queue is None:
            queue = (QueueGroup if config.of else ShardedQueue)(self, config, live)
            held.add(queue)
            # The groups of a queue in this process notice at once what is published to it here.
            for one in [one for held in self._held.values() for one in held]:
                for source, group in ((queue, one), (one, queue)):
                    if group.config.of == source.name:
                        cast(QueueGroup, group).follow(source)
        return queue


def _swept(stored: Any, shard: int) -> int:
    """Return the sweep pointer of a shard; 0, as where there is none yet, for one that is damaged."""
    found: Any = stored.get(str(shard)) if isinstance(stored, Mapping) else None
    return found if is_int(found) and 0 < found <= MAX_COUNTER else 0
