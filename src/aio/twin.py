"""How a class of the sync surface gets its twin on a loop: its verbs are awaited, its attributes are the same.

    class FencedLock(Twin[sync.FencedLock]):
        acquire = verb_as(sync.FencedLock.acquire, Grant, undo=sync.Grant.release)
        owner = attribute[str]()

The parameters and their types are those of the sync verb. So the twins cannot fall behind.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..errors import InvalidRequest
from ..plain import shown
from .bridge import run
from .bridged import BridgedStore

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W")

WAY_OUT = 10.0
"""Seconds that a way out may take of what has no lease, such as an acknowledgement."""


class Twin(Generic[S]):
    """An object of the sync surface (`of`), used on loops."""

    __slots__ = ("__weakref__", "_store", "of")

    def __init__(self, of: S, store: BridgedStore) -> None:
        self.of, self._store = of, store

    def __repr__(self) -> str:
        return f"aio.{self.of!r}"

    @property
    def bridged(self) -> BridgedStore:
        """The store that its sync object (`of`) was made with."""
        return self._store

    def _run(self, call: Callable[[], R], undo: Callable[[R], object] | None = None) -> Coroutine[Any, Any, R]:
        lease = None if undo is None else getattr(self.of, "lease", WAY_OUT)
        return run(call, self._store.seams, self._store.pool, undo=undo, lease=lease)

    def _leave(self, call: Callable[[], R], seconds: float | None = None) -> Coroutine[Any, Any, R]:
        """Run a way out, of so many seconds, or of as many as its lease has: a cancel comes after it."""
        lease = getattr(self.of, "lease", WAY_OUT) if seconds is None else seconds
        return run(call, self._store.seams, self._store.pool, lease=lease)


def sync_of(what: str, given: Any, kind: type[Twin[S]]) -> S:
    """Return the sync object of a twin of that kind. Raises `InvalidRequest` for anything else."""
    if not isinstance(given, kind):
        raise InvalidRequest(f"{what} is {shown(given)}; it must be a {kind.__name__} of latchwork.aio")
    return given.of


def sync_or_none(what: str, given: Any, kind: type[Twin[S]]) -> S | None:
    """Return the sync object of a twin, and None for None. Raises `InvalidRequest`."""
    return None if given is None else sync_of(what, given, kind)


class attribute(Generic[T]):  # noqa: N801 - read as `property` is
    """An attribute of the sync object. No I/O. Safe to share between threads."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, twin: None, owner: type) -> attribute[T]: ...
    @overload
    def __get__(self, twin: Twin[Any], owner: type) -> T: ...
    def __get__(self, twin: Twin[Any] | None, owner: type) -> Any:
        return self if twin is None else getattr(twin.of, self._name)


class verb(Generic[P, R]):  # noqa: N801 - read as `property` is
    """A verb of the sync surface, awaited. Safe to share between threads.

    undo: gives back its result, if its task was cancelled meanwhile.
    way_out: whether it releases or gives back: then a cancel comes after it.
    """

    def __init__(
        self, of: Callable[Concatenate[Any, P], R], *, undo: Callable[[R], object] | None = None, way_out: bool = False
    ) -> None:
        self.of, self._undo, self._way_out = of, undo, way_out
        self.__doc__, self.__wrapped__ = of.__doc__, of
        self._name = of.__name__  # found in the object, whose class may have a method of its own

    @overload
    def __get__(self, twin: None, owner: type) -> verb[P, R]: ...
    @overload
    def __get__(self, twin: Twin[Any], owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, twin: Twin[Any] | None, owner: type) -> Any:
        return self if twin is None else partial(self._call, twin)

    def _call(self, twin: Twin[Any], *given: P.args, **named: P.kwargs) -> Coroutine[Any, Any, R]:
        call = partial(getattr(twin.of, self._name), *given, **named)
        return twin._leave(call) if self._way_out else twin._run(call, self._undo)  # noqa: SLF001 - a part of it


class verb_as(Generic[P, R, W]):  # noqa: N801 - read as `property` is
    """A verb whose result has a twin, which `wrap` makes. Safe to share between threads."""

    def __init__(
        self,
        of: Callable[Concatenate[Any, P], R],
        wrap: Callable[[R, BridgedStore], W],
        *,
        undo: Callable[[R], object] | None = None,
    ) -> None:
        self.of, self._wrap, self._undo = of, wrap, undo
        self.__doc__, self.__wrapped__ = of.__doc__, of
        self._name = of.__name__  # found in the object, whose class may have a method of its own

    @overload
    def __get__(self, twin: None, owner: type) -> verb_as[P, R, W]: ...
    @overload
    def __get__(self, twin: Twin[Any], owner: type) -> Callable[P, Coroutine[Any, Any, W]]: ...
    def __get__(self, twin: Twin[Any] | None, owner: type) -> Any:
        return self if twin is None else partial(self._call, twin)

    async def _call(self, twin: Twin[Any], *given: P.args, **named: P.kwargs) -> W:
        call = partial(getattr(twin.of, self._name), *given, **named)
        result = await twin._run(call, self._undo)  # noqa: SLF001 - a part of it
        return self._wrap(result, twin._store)  # noqa: SLF001 - as above


def maybe(wrap: Callable[[R, BridgedStore], W]) -> Callable[[R | None, BridgedStore], W | None]:
    """Return a function that makes a twin of a result that may be None."""
    return lambda result, store: None if result is None else wrap(result, store)


def unless_none(undo: Callable[[R], object]) -> Callable[[R | None], object]:
    """Return a function that gives back a result that may be None."""
    return lambda result: None if result is None else undo(result)


def listed(wrap: Callable[[R, BridgedStore], W]) -> Callable[[list[R], BridgedStore], list[W]]:
    """Return a function that makes twins of the results in a list."""
    return lambda results, store: [wrap(one, store) for one in results]
