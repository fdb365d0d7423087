"""A store on a loop: its verbs are awaited, and locks and queues that are made with it wait on the loop.

async with aio.connect("aerospike://db/test") as store:
    await store.operate(key, Add("seats", -1))
    lock = aio.FencedLock(store, "report")
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Literal, ParamSpec, TypeVar, overload

from ..errors import Corrupt, InvalidRequest, LatchworkError, Unreadable
from ..inputs import checked_callable
from ..retry import RetryPolicy
from ..seams import SYSTEM
from ..store.connect import as_store
from ..store.connect import connect as connect_sync
from ..store.port import Key, Record, RecordStore
from .bridge import run, verb_of
from .bridged import BridgedStore
from .pool import THREADS, Pool
from .seams import LoopSeams
from .twin import Twin, attribute, verb

P = ParamSpec("P")
R = TypeVar("R")


class Store(Twin[RecordStore]):
    """A store of the sync surface, used on loops. All of `latchwork.aio` is made with one.

    threads: that make its calls, 1 to 1,000: no more calls than these are under way at a time. A wait takes none.

    `async with` closes it at its end. Safe to share between threads, each with a loop of its own. A call
    that is under way when its task is cancelled is finished; `ended(error)` has its result.
    """

    __slots__ = ("_pool",)

    def __init__(self, of: RecordStore, *, threads: int = THREADS) -> None:
        if isinstance(as_store(of), BridgedStore):
            raise InvalidRequest(f"{of.where} belongs to an aio.Store already: use that")
        self._pool = Pool(of.seams, threads, "latchwork-aio")
        bridged = BridgedStore(of, self._pool)
        super().__init__(bridged, bridged)

    get = verb(RecordStore.get)
    operate = verb(RecordStore.operate)
    repeat = verb(RecordStore.repeat)
    once = verb(RecordStore.once)
    operate_many = verb(RecordStore.operate_many)
    repeat_many = verb(RecordStore.repeat_many)
    delete = verb(RecordStore.delete)
    delete_many = verb(RecordStore.delete_many)
    query = verb(RecordStore.query)
    scan = verb(RecordStore.scan)
    ensure_index = verb(RecordStore.ensure_index)
    describe = verb(RecordStore.describe)
    where = attribute[str]()

    @overload
    async def get_many(
        self, keys: Iterable[Key], *bins: str, each: Literal[False] = ...
    ) -> Sequence[Record | LatchworkError | None]: ...
    @overload
    async def get_many(
        self, keys: Iterable[Key], *bins: str, each: Literal[True]
    ) -> list[Record | Corrupt | Unreadable | None]: ...
    async def get_many(
        self, keys: Iterable[Key], *bins: str, each: bool = False
    ) -> Sequence[Record | LatchworkError | None]:
        """Read many records, as `RecordStore.get_many` does."""
        return await self._run(lambda: self.of.get_many(keys, *bins, each=each))  # type: ignore[call-overload] # as above

    def with_policy(self, policy: RetryPolicy) -> Store:
        """Return a view of this store, on its connection and its threads, that retries by another policy."""
        view = object.__new__(Store)
        view._pool = self._pool
        bridged = BridgedStore(self._store.inner.with_policy(policy), self._pool)
        bridged.token_clock = self._store.token_clock
        Twin.__init__(view, bridged, bridged)
        return view

    async def close(self) -> None:
        """Close this process's connection, if the store made it, and end the threads. Harmless when repeated."""
        try:
            if not self._pool.is_closed:
                await self._leave(self._store.close)
        finally:
            self._pool.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(url: str | None = None, *, threads: int = THREADS) -> Store:
    """Return the store that a URL names, as `latchwork.connect` does, for loops. Nothing is opened yet."""
    return Store(connect_sync(url), threads=threads)


def bridged_of(store: object) -> BridgedStore:
    """Return the store that a primitive of the sync surface is made with. Raises `InvalidRequest`."""
    if isinstance(store, Store):
        return store.bridged
    given = "the URL of a store" if isinstance(store, str) else f"a {type(store).__name__}"
    raise InvalidRequest(f"{given} is not an aio.Store: pass what aio.connect(...) or aio.Store(store) returns")


async def call(verb: Callable[P, R], /, *given: P.args, **named: P.kwargs) -> R:
    """Make any blocking call in a thread, and return what it returns: for classes that have no twin here, such as a
    `LargeQueue`, a `PagedQueue`, an `Outbox` or the administration of a registry, with a store of the sync surface.

    At most 16 of them run at a time in a process, and a wait takes its thread until it ends: give it a timeout. A task
    that is cancelled gets `CancelledError` once the call has ended, and `ended(error)` has its result.

    Raises `InvalidRequest` for a function that is awaited: its call alone does nothing.
    """
    checked_callable("what aio.call is given", verb)

    def in_a_thread() -> R:
        now = verb_of()
        assert now is not None  # noqa: S101 - `run` has made it
        result = now.offload(partial(verb, *given, **named))
        if isinstance(result, Coroutine):
            result.close()  # Python warns about a coroutine that is never awaited
            raise InvalidRequest(
                "what aio.call was given is an async function, and nothing was done: await it without aio.call"
            )
        return result

    return await run(in_a_thread, _SEAMS, _CALLS, whole=True)


_SEAMS = LoopSeams(SYSTEM)
_CALLS = Pool(SYSTEM, THREADS, "latchwork-aio-call")
