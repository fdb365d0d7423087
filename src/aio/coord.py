"""The primitives of `latchwork.coord` on a loop. Each verb does what the sync verb of its name does, at its cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .. import coord as sync
from ..coord.election.election import STOP_TIMEOUT, Election
from ..coord.fencing import Fenced as SyncFenced
from ..coord.fencing import Lost as SyncLost
from ..coord.latch.latch import Latch, LatchLevel, LatchProgress
from ..coord.limiter import Per
from ..coord.lock import LOCK_POLL
from ..errors import InvalidRequest, LatchworkError
from ..inputs import checked_timeout, is_async
from ..retry import Poll
from ..store.port import RecordStore
from .bridge import add_failure, awaited, in_its_own_time, on_loop
from .store import Store, bridged_of
from .twin import Twin, attribute, maybe, sync_or_none, unless_none, verb, verb_as

P = ParamSpec("P")
N = TypeVar("N", bound=str | int)
T = TypeVar("T")
F = TypeVar("F", bound=SyncFenced)
G = TypeVar("G", bound=sync.Grant)
H = TypeVar("H", bound="Held[Any]")
L = TypeVar("L", bound=Latch)
LL = TypeVar("LL", bound="_Latch[Any]")
E = TypeVar("E", bound=Election)


class Lost(Twin[SyncLost]):
    """An event that is set as soon as a lease can no longer be relied on. Safe to share between threads.

    `is_set` reads the clock, without I/O.
    """

    wait = verb(SyncLost.wait)

    def is_set(self) -> bool:
        """Whether the lease has run out, was lost, or was released. No I/O."""
        return self.of.is_set()


class _Fenced(Twin[F]):
    """The holder of a fence. `lost` is set when its lease can no longer be relied on."""

    operate = verb(SyncFenced.operate)
    seal = verb(SyncFenced.seal)

    @property
    def lost(self) -> Lost:
        """The event of its loss: `await grant.lost.wait()`. A thread sets it, also while the loop is busy."""
        return Lost(self.of.lost, self._store)

    def check(self) -> None:
        """Raise `FencedOut` if the lease can no longer be relied on. No I/O."""
        self.of.check()


def end_block(block: Any, grant: sync.Grant | None, kind: Any, error: Any, trace: Any) -> None:
    """End a block as the sync one does. Where it is cancelled, the outcome also says if the release failed."""
    block.__exit__(kind, error, trace)
    failure = None if grant is None else grant.unreleased
    if failure is not None:
        add_failure(error, failure)


class Held(_Fenced[G]):
    """What an acquisition gives. Leaving its `async with` block releases it, also where its task is cancelled."""

    fence = attribute[int]()
    owner = attribute[str]()
    broken = attribute[bool]()
    renew = verb(sync.Grant.renew)
    release = verb(sync.Grant.release, way_out=True)
    keep_alive = verb(sync.Grant.keep_alive)

    def give_up(self) -> None:
        """Set `lost`, and record that the holder did so itself. No I/O."""
        self.of.give_up()

    async def __aenter__(self: H) -> H:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(partial(end_block, self.of, self.of, kind, error, trace))


class Grant(Held[sync.Grant]):
    """One acquisition of a lock: see `latchwork.coord.Grant`."""


class FencedLock(Twin[sync.FencedLock]):
    """A lock with fences: see `latchwork.coord.FencedLock`. `async with lock as grant` keeps it alive.

    A task that is cancelled while it acquires has no lock: if it took one, that is released.
    """

    name = attribute[str]()
    owner = attribute[str]()
    lease = attribute[float]()
    acquire = verb_as(sync.FencedLock.acquire, Grant, undo=sync.Grant.release)
    try_acquire = verb_as(sync.FencedLock.try_acquire, maybe(Grant), undo=unless_none(sync.Grant.release))
    break_lease = verb(sync.FencedLock.break_lease)

    def __init__(
        self, store: Store, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.FencedLock(bridged, name, owner=owner, lease=lease, poll=poll), bridged)

    @property
    def grant(self) -> Grant | None:
        """The grant of this task's `async with lock:` block; None outside of such a block. No I/O."""
        grant = self.of.grant
        return None if grant is None else Grant(grant, self._store)

    async def __aenter__(self) -> Grant:
        return Grant(await self._run(self.of.__enter__, lambda _: self.of.__exit__(None, None, None)), self._store)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(partial(end_block, self.of, self.of.grant, kind, error, trace))


class Permits(Held[sync.Permits]):
    """Permits taken together: see `latchwork.coord.Permits`."""

    slots = attribute[tuple[int, ...]]()
    n = attribute[int]()
    operate = verb(sync.Permits.operate)
    seal = verb(sync.Permits.seal)


class Semaphore(Twin[sync.Semaphore]):
    """A number of permits: see `latchwork.coord.Semaphore`."""

    name = attribute[str]()
    owner = attribute[str]()
    lease = attribute[float]()
    permits = attribute[int]()
    acquire = verb_as(sync.Semaphore.acquire, Permits, undo=sync.Permits.release)
    try_acquire = verb_as(sync.Semaphore.try_acquire, maybe(Permits), undo=unless_none(sync.Permits.release))
    resize = verb(sync.Semaphore.resize)
    size = verb(sync.Semaphore.size)
    holders = verb(sync.Semaphore.holders)

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        permits: int,
        owner: str | None = None,
        lease: float = 10.0,
        poll: Poll = LOCK_POLL,
    ) -> None:
        bridged = bridged_of(store)
        made = sync.Semaphore(bridged, name, permits=permits, owner=owner, lease=lease, poll=poll)
        super().__init__(made, bridged)


class ReadGrant(Held[sync.ReadGrant]):
    """One acquisition for reading: see `latchwork.coord.ReadGrant`."""

    mode = attribute[Any]()
    generation = attribute[int]()
    abandoned = attribute[int | None]()


class WriteGrant(Held[sync.WriteGrant]):
    """The only acquisition for writing: see `latchwork.coord.WriteGrant`."""

    mode = attribute[Any]()
    abandoned = attribute[int | None]()
    clear_abandoned = verb(sync.WriteGrant.clear_abandoned)


class ReadWriteLock(Twin[sync.ReadWriteLock]):
    """A lock for many readers or one writer: see `latchwork.coord.ReadWriteLock`."""

    name = attribute[str]()
    owner = attribute[str]()
    lease = attribute[float]()
    read = verb_as(sync.ReadWriteLock.read, ReadGrant, undo=sync.ReadGrant.release)
    write = verb_as(sync.ReadWriteLock.write, WriteGrant, undo=sync.WriteGrant.release)
    try_read = verb_as(sync.ReadWriteLock.try_read, maybe(ReadGrant), undo=unless_none(sync.ReadGrant.release))
    try_write = verb_as(sync.ReadWriteLock.try_write, maybe(WriteGrant), undo=unless_none(sync.WriteGrant.release))
    holders = verb(sync.ReadWriteLock.holders)

    def __init__(
        self, store: Store, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.ReadWriteLock(bridged, name, owner=owner, lease=lease, poll=poll), bridged)


class RateLimiter(Twin[sync.RateLimiter]):
    """A limit on calls in each window of time: see `latchwork.coord.RateLimiter`.

    A task that is cancelled at the moment at which its calls are allowed has spent them.
    """

    name = attribute[str]()
    try_acquire = verb(sync.RateLimiter.try_acquire)
    acquire = verb(sync.RateLimiter.acquire)

    def __init__(self, store: Store, name: str, limit: int, per: Per, *, also: Iterable[tuple[int, Per]] = ()) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.RateLimiter(bridged, name, limit, per, also=list(also)), bridged)

    @property
    def limits(self) -> Any:
        """The limits, each with `most` calls in `per` seconds."""
        return self.of.limits

    def of_key(self, key: str) -> RateLimiter:
        """Return the limiter of one key, such as a customer. No I/O."""
        made = object.__new__(RateLimiter)
        Twin.__init__(made, self.of.of_key(key), self._store)
        return made


class Membership(Held[sync.Membership]):
    """One membership of a group: see `latchwork.coord.Membership`. Leaving its `async with` block leaves the group; if
    the block raises, also a cancel, the member is lost at once.
    """

    leave = verb(sync.Membership.leave, way_out=True)
    fail = verb(sync.Membership.fail, way_out=True)


class Group(Twin[sync.Group]):
    """A group of members: see `latchwork.coord.Group`. Heartbeats come from a thread, also while the loop is busy."""

    name = attribute[str]()
    farm = attribute[str]()
    join = verb_as(sync.Group.join, Membership, undo=sync.Membership.leave)
    members = verb(sync.Group.members)
    lost = verb(sync.Group.lost)

    def __init__(self, store: Store, name: str, *, farm_id: str | None = None, ttl: int = 86_400) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.Group(bridged, name, farm_id=farm_id, ttl=ttl), bridged)

    def watch(self, timeout: float | None = None) -> AsyncGenerator[sync.Change, None]:
        """Yield each change as it is seen: joined, left or lost. The present members come first, as joined.

        timeout: seconds after which it ends; None = never. Otherwise as `latchwork.coord.Group.watch`.
        """
        return self._watch(checked_timeout(timeout))

    async def _watch(self, timeout: float | None) -> AsyncGenerator[sync.Change, None]:
        changes = await self._run(partial(self.of.watch, timeout))
        while True:
            change = await self._run(partial(next, changes, None))
            if change is None:
                return
            yield change


class Barrier(Twin[sync.Barrier]):
    """Parties that wait for each other: see `latchwork.coord.Barrier`.

    A party whose task is cancelled while it waits has arrived: the next wait of this handle continues.
    """

    name = attribute[str]()
    farm = attribute[str]()
    abort = verb(sync.Barrier.abort)
    progress = verb(sync.Barrier.progress)
    delete = verb(sync.Barrier.delete)

    def __init__(
        self,
        store: Store,
        client_id: str,
        name: str,
        *,
        parties: Iterable[str],
        farm_id: str | None = None,
        level: LatchLevel = LatchLevel.DC,
        ttl: int = 86_400,
    ) -> None:
        bridged = bridged_of(store)
        made = sync.Barrier(bridged, client_id, name, parties=parties, farm_id=farm_id, level=level, ttl=ttl)
        super().__init__(made, bridged)

    async def wait(
        self, party: str, payload: Any = None, timeout: float | None = None, *, alive: Group | None = None
    ) -> dict[str, Any]:
        """Arrive, and wait until all have arrived; return what each of them has brought, by party.

        As `latchwork.coord.Barrier.wait`.
        """
        return await self._run(
            partial(self.of.wait, party, payload, timeout, alive=sync_or_none("alive", alive, Group))
        )


class _Maker(Generic[P]):
    """A class method that makes a latch of the sync surface, given an `aio.Store` for its store."""

    def __init__(self, of: Callable[Concatenate[RecordStore, P], Latch]) -> None:
        self.__doc__, self.__wrapped__, self._name = of.__doc__, of, of.__name__

    def _of(self, owner: type[_Latch[Any]], store: Store, *given: P.args, **named: P.kwargs) -> Callable[[], Any]:
        make = getattr(owner._sync, self._name)  # noqa: SLF001 - a part of it
        return partial(make, bridged_of(store), *given, **named)


class got(_Maker[P]):  # noqa: N801 - read as `classmethod` is
    """A handle, made without I/O."""

    def __get__(self, latch: object, owner: type[LL]) -> Callable[Concatenate[Store, P], LL]:
        return partial(self._made, owner)

    def _made(self, owner: type[LL], store: Store, *given: P.args, **named: P.kwargs) -> LL:
        return owner(self._of(owner, store, *given, **named)(), store.bridged)


class created(_Maker[P]):  # noqa: N801 - as above
    """A latch, created in the store. One whose task was cancelled meanwhile stays: `ended(error)` says so."""

    def __get__(self, latch: object, owner: type[LL]) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, LL]]:
        return partial(self._made, owner)

    async def _made(self, owner: type[LL], store: Store, *given: P.args, **named: P.kwargs) -> LL:
        make = self._of(owner, store, *given, **named)
        return owner(await store._run(make), store.bridged)  # noqa: SLF001 - as above


class _Latch(Twin[L]):
    """The common part of both kinds of latch."""

    _sync: type[Any]

    create = created(Latch.create)
    get_or_create = created(Latch.get_or_create)
    get = got(Latch.get)
    count_down = verb(Latch.count_down)
    count = verb(Latch.count)
    counts = verb(Latch.counts)
    progress = verb(Latch.progress)
    parties = verb(Latch.parties)
    expected = verb(Latch.expected)
    delete = verb(Latch.delete)

    async def wait(
        self,
        timeout: float | None = None,
        *,
        progress: bool | Callable[[LatchProgress], None] | None = None,
        create_timeout: float | None = 0,
        alive: Group | None = None,
    ) -> bool:
        """Wait until the latch is released. Return True then, and False after `timeout` seconds.

        As `latchwork.coord.CountDownLatch.wait`. A function for `progress` is not async; it may begin a task.
        """
        if callable(progress) and is_async(progress):
            raise InvalidRequest("progress is an async function, and nothing would run it: give one that begins a task")
        wait = partial(
            self.of.wait,
            timeout,
            progress=in_its_own_time(progress) if callable(progress) else progress,
            create_timeout=create_timeout,
            alive=sync_or_none("alive", alive, Group),
        )
        return await self._run(wait)

    @overload
    async def missing(self, expected: None = None, *, lost_in: Group | None = None) -> set[str | int]: ...
    @overload
    async def missing(self, expected: Iterable[N], *, lost_in: Group | None = None) -> set[N]: ...
    async def missing(self, expected: Iterable[Any] | None = None, *, lost_in: Group | None = None) -> set[Any]:
        """Return the parties that have not counted. One read. As `latchwork.coord.CountDownLatch.missing`."""
        group = sync_or_none("lost_in", lost_in, Group)
        missing: Callable[..., set[Any]] = self.of.missing
        return await self._run(partial(missing, expected, lost_in=group))


class CountDownLatch(_Latch[sync.CountDownLatch]):
    """A latch that only counts down: see `latchwork.coord.CountDownLatch`."""

    _sync = sync.CountDownLatch


class CountUpDownLatch(_Latch[sync.CountUpDownLatch]):
    """A latch that also counts up: see `latchwork.coord.CountUpDownLatch`."""

    _sync = sync.CountUpDownLatch
    count_up = verb(sync.CountUpDownLatch.count_up)


class Leadership(_Fenced[sync.Leadership]):
    """One leader's term: see `latchwork.coord.Leadership`."""

    epoch = attribute[int]()
    candidate = attribute[str]()
    unreleased = attribute[LatchworkError | None]()


Lead = Callable[[Leadership], Awaitable[object]]
"""What a leader does: an async function of its term."""


class _Election(Twin[E]):
    """The common part of all elections. The campaign, and the renewal of the term, run in threads."""

    name = attribute[str]()
    candidate = attribute[str]()
    resign = verb(Election.resign, way_out=True)
    step_down = verb(Election.step_down)
    contenders = verb(Election.contenders)

    @property
    def leadership(self) -> Leadership | None:
        """The present term of this candidate, None if it does not lead. No I/O. Advisory."""
        term = self.of.leadership
        return None if term is None else Leadership(term, self._store)

    async def start(self, lead: Lead | None = None) -> bool:
        """Take part in the election until `stop`. False if this candidate already takes part.

        lead: an async function that runs on this loop with each term; otherwise as `latchwork.coord.LeaseElection`.
        """
        if lead is None:
            return await self._run(self.of.start)

        def led(term: sync.Leadership) -> Awaitable[object]:
            return lead(Leadership(term, self._store))

        return await self._run(partial(self.of.start, on_loop(led) if callable(lead) else lead))

    async def stop(self, timeout: float | None = STOP_TIMEOUT) -> bool:
        """Give up the term, if there is one, and end the campaign; whether it has ended within `timeout` seconds."""
        return await self._leave(partial(self.of.stop, timeout))

    async def run(self, fn: Callable[[Leadership], Awaitable[T]], timeout: float | None = None) -> T:
        """Wait to be elected, await `fn(leadership)`, give up the term, and return or raise what `fn` did.

        timeout: seconds to wait to be elected; None = no limit. A cancel ends `fn`, and then the term.

        Raises `WaitTimeout` if it was not elected in time, or was stopped.
        """

        def led(term: sync.Leadership) -> T:
            return awaited(fn(Leadership(term, self._store)))

        return await self._run(partial(self.of.run, led if callable(fn) else fn, timeout))


class LeaseElection(_Election[sync.LeaseElection]):
    """An election by a lease in the store: see `latchwork.coord.LeaseElection`."""

    lease = attribute[float]()

    def __init__(
        self, store: Store, name: str, *, candidate: str | None = None, lease: float = 10.0, poll: Poll | None = None
    ) -> None:
        bridged = bridged_of(store)
        super().__init__(sync.LeaseElection(bridged, name, candidate=candidate, lease=lease, poll=poll), bridged)


class ZooKeeperElection(_Election[sync.ZooKeeperElection]):
    """An election by ZooKeeper: see `latchwork.coord.ZooKeeperElection`."""

    lease = attribute[float]()

    def __init__(
        self,
        store: Store,
        name: str,
        client_or_hosts: Any,
        *,
        candidate: str | None = None,
        path: str = "/latchwork/elections",
        lease: float | None = None,
    ) -> None:
        bridged = bridged_of(store)
        made = sync.ZooKeeperElection(bridged, name, client_or_hosts, candidate=candidate, path=path, lease=lease)
        super().__init__(made, bridged)
