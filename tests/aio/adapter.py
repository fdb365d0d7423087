"""The asyncio surface in the clothes of the sync one, so that tests of the one run on the other.

    lock = Awaited(aio.FencedLock)(store, "x")
    with lock.acquire(5) as grant: ...

Each verb is awaited on a loop that runs in a thread of its own; what has a twin comes back in these clothes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import ValuesView
from functools import cache, partial, update_wrapper, wraps
from typing import Any
from weakref import WeakKeyDictionary

import latchwork
from latchwork import aio, coord, queue
from latchwork.aio.twin import Twin
from latchwork.store.port import DelegatingStore, RecordStore


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop, which runs until the process ends."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="awaited", daemon=True).start()
    return made


def awaited(work: Any) -> Any:
    """What the coroutine returns, run on the loop. An interrupt of this thread cancels it."""
    if asyncio._get_running_loop() is not None:
        return within(work)

    async def task():
        return await work

    future = asyncio.run_coroutine_threadsafe(task(), loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def within(work: Any) -> Any:
    """What the coroutine returns, run in the middle of another verb, as what a clock of the test's does on the way."""
    outer = asyncio.get_running_loop()
    task, inner = asyncio.current_task(), asyncio.new_event_loop()
    if task is not None:
        asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        return inner.run_until_complete(work)
    finally:
        asyncio._set_running_loop(outer)
        if task is not None:
            asyncio.tasks._enter_task(outer, task)
        inner.close()


STORES: WeakKeyDictionary[RecordStore, aio.Store] = WeakKeyDictionary()


def store_of(store: Any) -> Any:
    """The `aio.Store` of a sync one; always the same."""
    if not isinstance(store, RecordStore):
        return store
    return STORES.get(store) or STORES.setdefault(store, aio.Store(store))


def undressed(value: Any) -> Any:
    """A twin for what stands for one."""
    if isinstance(value, Plain):
        return object.__getattribute__(value, "_twin")
    if type(value) in (list, tuple):
        return type(value)(map(undressed, value))
    if isinstance(value, ValuesView):
        return [undressed(one) for one in value]
    return value


def inner(value: Any) -> Any:
    """The sync object for what stands for its twin."""
    value = undressed(value)
    if isinstance(value, Twin):
        return value.of
    return [inner(one) for one in value] if isinstance(value, list) else value


def dressed(value: Any) -> Any:
    """What a verb has returned, with its twins in the clothes of the sync surface."""
    if inspect.iscoroutine(value):
        return dressed(awaited(value))
    if inspect.isasyncgen(value):
        return iterated(value)
    if isinstance(value, Twin):
        return Plain(value)
    if isinstance(value, list):
        return [dressed(one) for one in value]
    return value


def iterated(found: Any):
    """Yield what the async generator yields."""
    try:
        while True:
            try:
                yield dressed(awaited(anext(found)))
            except StopAsyncIteration:
                return
    finally:
        awaited(found.aclose())


def function(given: Any) -> Any:
    """An async function for one of the test's, which gets twins in the clothes of the sync surface."""
    if not callable(given) or inspect.iscoroutinefunction(given):
        return given

    @wraps(given)
    async def called(*values: Any, **named: Any) -> Any:
        return await asyncio.to_thread(given, *map(dressed, values), **named)

    return called


class Plain:
    """A twin whose verbs can be called."""

    def __init__(self, twin: Any) -> None:
        object.__setattr__(self, "_twin", twin)

    def __getattr__(self, name: str) -> Any:
        twin = object.__getattribute__(self, "_twin")
        if name == "store":
            return twin.bridged.inner
        has = hasattr(type(twin), name)
        value, bare = (getattr(twin, name), undressed) if has else (getattr(twin.of, name), inner)
        if not callable(value) or isinstance(value, type | Twin):
            return dressed(value)

        def call(*given: Any, **named: Any) -> Any:
            wrap = function if name in ("run", "start") else lambda one: one
            given = [wrap(bare(one)) for one in given]
            return dressed(value(*given, **{key: bare(one) for key, one in named.items()}))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_twin").of, name, value)

    def __repr__(self) -> str:
        return repr(object.__getattribute__(self, "_twin").of)

    def __eq__(self, other: object) -> bool:
        return bare(self) is bare(other)

    __hash__ = object.__hash__

    def __enter__(self) -> Any:
        return dressed(object.__getattribute__(self, "_twin").__aenter__())

    def __exit__(self, *how: Any) -> Any:
        return dressed(object.__getattribute__(self, "_twin").__aexit__(*how))

    def __call__(self, work: Any) -> Any:
        return decorated(object.__getattribute__(self, "_twin"), work)


def decorated(decorator: Any, work: Any) -> Any:
    """The test's function as the decorator of the asyncio surface makes it, called as a sync one."""
    made = decorator(function(work))
    called = update_wrapper(lambda *given, **named: dressed(made(*given, **named)), work)
    called.step = lambda *given, **named: dressed(made.step(*given, **named))
    return called


def once(store: Any, **given: Any) -> Any:
    """`aio.once` in the clothes of `latchwork.once`."""
    made = aio.once(store_of(store), **given)
    return Plain(made) if isinstance(made, Twin) else partial(decorated, made)


class Package:
    """The package, with what has a twin dressed."""

    once = staticmethod(once)

    def __getattr__(self, name: str) -> Any:
        return getattr(latchwork, name)


class Awaited:
    """A class of the asyncio surface, made and used as its sync one."""

    def __init__(self, twin: type) -> None:
        self._twin = twin

    def __call__(self, first: Any, *given: Any, **named: Any) -> Plain:
        given = [undressed(one) for one in given]
        if self._twin is aio.Consumer:
            given[0] = function(given[0])
        return Plain(self._twin(undressed(store_of(first)), *given, **{k: undressed(v) for k, v in named.items()}))

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._twin, name)
        return lambda store, *given, **named: dressed(made(store_of(store), *given, **named))


class AwaitedStore(DelegatingStore):
    """A store whose public verbs are awaited."""

    def __init__(self, inner: RecordStore) -> None:
        super().__init__(inner)
        self._aio = store_of(inner)

    def __getattribute__(self, name: str) -> Any:
        if name in VERBS:
            verb = getattr(object.__getattribute__(self, "_aio"), name)
            return lambda *given, **named: awaited(verb(*given, **named))
        return super().__getattribute__(name)


VERBS = (
    "get", "get_many", "operate", "repeat", "once", "operate_many", "repeat_many", "delete", "delete_many", "query",
    "scan", "ensure_index", "describe",
)  # fmt: skip


def in_a_thread(kind: type) -> Any:
    """A class that has no twin, made of the sync objects of those that have."""

    def made(*given: Any, **named: Any) -> Any:
        return kind(*map(bare, given), **{key: bare(value) for key, value in named.items()})

    return made


def bare(value: Any) -> Any:
    """The sync object of a twin."""
    return undressed(value).of if isinstance(value, Plain) else value


def dress(module: Any, monkeypatch: Any) -> None:
    """Let a module use the asyncio surface wherever it names a class that has a twin."""
    if getattr(module, "latchwork", None) is latchwork:
        monkeypatch.setattr(module, "latchwork", Package())
    for name in (*aio.__all__, "Sweeper", "Shovel"):
        kind = getattr(coord, name, None) or getattr(queue, name, None)
        if not isinstance(kind, type) or getattr(module, name, None) is not kind or name in PLAIN:
            continue
        twin = getattr(aio, name, None)
        monkeypatch.setattr(module, name, in_a_thread(kind) if twin is None else Awaited(twin))


PLAIN = ("Delivery", "Grant", "Lost")
"""Named by tests for what they are, not to be made."""
