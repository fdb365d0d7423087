"""A store as the primitives see it when their verbs run on a loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from ..store.local.memory import MemoryStore
from ..store.once import TokenClock
from ..store.port import DelegatingStore, RecordStore
from .bridge import verb_of
from .pool import Pool
from .seams import LoopSeams

T = TypeVar("T")


class BridgedStore(DelegatingStore):
    """A store whose calls block no loop: a verb that runs on one parks while a thread of the pool makes the call.

    In any other thread, such as one that renews a lease, a call is made as ever.
    """

    def __init__(self, inner: RecordStore, pool: Pool) -> None:
        super().__init__(inner)
        self.pool, self.seams = pool, LoopSeams(inner.seams)
        self.token_clock = TokenClock()  # by which it has a poller of its own
        self._is_instant = _is_instant(inner)

    def _call(self, call: Callable[..., T], *given: Any) -> T:
        verb = None if self._is_instant else verb_of()
        return call(*given) if verb is None else verb.offload(call, *given)

    def together(self) -> AbstractContextManager[None]:
        """As of the store, whose transactions belong to a thread: none for a verb on a loop."""
        return self.inner.together() if verb_of() is None else nullcontext()

    def describe(self) -> Any:
        return self._call(self.inner.describe)

    def data_version(self) -> object:
        return self._call(self.inner.data_version) if self.tells_of_writes else None

    def close(self) -> None:
        self._call(self.inner.close)

    def _get(self, *given: Any) -> Any:
        return self._call(self.inner._get, *given)

    def _get_many(self, *given: Any) -> Any:
        return self._call(self.inner._get_many, *given)

    def _operate(self, *given: Any) -> Any:
        return self._call(self.inner._operate, *given)

    def _operate_many(self, *given: Any) -> Any:
        return self._call(self.inner._operate_many, *given)

    def _delete(self, *given: Any) -> Any:
        return self._call(self.inner._delete, *given)

    def _delete_many(self, *given: Any) -> Any:
        return self._call(self.inner._delete_many, *given)

    def _query(self, *given: Any) -> Any:
        return self._call(self.inner._query, *given)

    def _scan(self, *given: Any) -> Any:
        return self._call(self.inner._scan, *given)

    def _ensure_index(self, *given: Any) -> Any:
        return self._call(self.inner._ensure_index, *given)


def _is_instant(store: RecordStore) -> bool:
    """Whether its calls take no time: a thread for each would take longer."""
    while isinstance(store, DelegatingStore):
        store = store.inner
    return type(store) is MemoryStore  # a subclass may wait
