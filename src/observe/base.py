"""The observation of a store: the interface of adapters, and the store that reports to them.

`observe` wraps a store; everything that is given that store (locks, latches, queues) is observed, and nothing else is
changed. A store that is not wrapped has seams whose `note`, `span` and `carry` do nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from ..errors import AlreadyExists, InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable
from ..logs import Log
from ..seams import Seams
from ..store.connect import as_store
from ..store.port import DelegatingStore, Key, Record, RecordStore, Removal, Row, Update, Values
from .events import EVENTS, Event

log = Log(__name__)

T = TypeVar("T")


class Sample(NamedTuple):
    """The value of a gauge at one moment, with its labels in the order of the event's."""

    event: Event
    labels: tuple[str, ...]
    value: float


class Telemetry(ABC):
    """The interface of an adapter to a monitoring system. Safe to share between threads."""

    @abstractmethod
    def record(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        """Record an event: count it, put it into its histogram, or set its gauge.

        An exception is not passed on, as the observed work is done by then; it is logged once.
        """

    @abstractmethod
    def read(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask `source` for the values of gauges whenever the gauges are read."""

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]], attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[object] | None:
        """Return a piece of work to show in a trace; None where this adapter knows no traces.

        An exception that it raises, or its block at the begin or the end, is logged once; the work is done without it.
        """
        return None

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """Return the headers of a message, with what names the present trace. An exception is logged once."""
        return headers


def observe(store: RecordStore, telemetry: Telemetry) -> RecordStore:
    """Return a view of the store, on its connection, that reports every attempt and event to `telemetry`.

    Give the result to whatever is to be observed. Several telemetries: observe the result again. Pickling it ships the
    plain store, since monitoring is a process's own: wrap it again over there. Raises `InvalidRequest`.
    """
    if not isinstance(telemetry, Telemetry):
        raise InvalidRequest(f"a {type(telemetry).__name__} is not a Telemetry: give a PrometheusTelemetry, or another")
    return ObservedStore(as_store(store), telemetry)


def outcome_of(result: object) -> str:
    """Return the outcome of an attempt, or of a row of a batch, from the closed set `events.OUTCOMES`."""
    if not isinstance(result, BaseException):
        return "absent" if result is None or result is False else "done"
    return next((name for kind, name in _OUTCOMES if isinstance(result, kind)), "failed")


_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (NotFound, "absent"),
    (AlreadyExists, "exists"),
    (Refused, "refused"),
    (OutcomeUnknown, "unknown"),
    (Unavailable, "unavailable"),
    (InvalidRequest, "invalid"),
)


class _Recorder:
    """A reporter of events to a telemetry; an error of the telemetry does not become an error of the work."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry, self._failed = telemetry, False

    def __call__(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        self.asked(None, self._telemetry.record, event, value, labels)

    def asked(self, otherwise: T, call: Callable[..., T], *given: Any) -> T:
        """Return what the telemetry returns; `otherwise` where it raises, which is logged once."""
        try:
            return call(*given)
        except Exception:
            if not self._failed:
                self._failed = True  # before it is said: the log may be kept in this store
                log.exception("%s: figures and traces are incomplete from here on", type(self._telemetry).__name__)
            return otherwise


class _Span:
    """A piece of work in a trace of a telemetry, which neither keeps the work from being done nor fails it."""

    def __init__(self, span: AbstractContextManager[object], recorder: _Recorder) -> None:
        self._span, self._recorder, self._begun = span, recorder, False

    def __enter__(self) -> None:
        self._begun = self._recorder.asked(False, self._begin)

    def _begin(self) -> bool:
        self._span.__enter__()
        return True

    def __exit__(self, *ended: Any) -> None:
        if self._begun:
            self._recorder.asked(None, self._span.__exit__, *ended)


class ObservedSeams(Seams):
    """The seams of a store, which report every event to a telemetry as well."""

    def __init__(self, inner: Seams, telemetry: Telemetry) -> None:
        self._inner, self._telemetry, self.record = inner, telemetry, _Recorder(telemetry)
        # Clocks, ids and threads are the inner seams' own, also ones that are added later.
        for name in vars(Seams):
            if not name.startswith("_"):
                setattr(self, name, getattr(inner, name))

    def note(self, event: str, value: float = 1, /, **labels: str) -> None:
        self.record(EVENTS[event], value, labels)
        self._inner.note(event, value, **labels)

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]] = (), /, **attributes: str | int
    ) -> AbstractContextManager[object]:
        span = self.record.asked(None, self._telemetry.span, name, origins, attributes)
        return self._inner.span(name, origins, **attributes) if span is None else _Span(span, self.record)

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        carried = self._inner.carry(headers)
        return self.record.asked(carried, self._telemetry.carry, carried)


class ObservedStore(DelegatingStore):
    """A store whose attempts are timed and counted; what `observe` returns."""

    def __init__(self, inner: RecordStore, telemetry: Telemetry) -> None:
        super().__init__(inner)
        self.seams = seams = ObservedSeams(inner.seams, telemetry)
        self._record, self._now = seams.record, inner.seams.monotonic

    def __reduce__(self) -> tuple[Any, ...]:
        return as_store, (self.inner,)

    def _recorded(self, verb: str, attempt: Callable[..., T], *arguments: Any) -> T:
        began, outcome = self._now(), "failed"
        try:
            result = attempt(*arguments)
            outcome = _of_batch(result) if verb in _BATCHES else outcome_of(result)
            return result
        except LatchworkError as failure:
            outcome = outcome_of(failure)
            raise
        finally:
            self._record(_CALLS, self._now() - began, {"verb": verb, "outcome": outcome})

    def _rows_recorded(self, verb: str, attempt: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        outcomes = self._recorded(verb, attempt, *arguments)
        for outcome, n in Counter(map(outcome_of, outcomes)).items():
            self._record(_ROWS, n, {"verb": verb, "outcome": outcome})
        return outcomes

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        return self._recorded("get", super()._get, key, bins)

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        return self._rows_recorded("get_many", super()._get_many, keys, bins)

    def _operate(self, update: Update) -> Values:
        return self._recorded("operate", super()._operate, update)

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        return self._rows_recorded("operate_many", super()._operate_many, updates)

    def _delete(self, removal: Removal) -> bool:
        return self._recorded("delete", super()._delete, removal)

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        return self._rows_recorded("delete_many", super()._delete_many, removals)

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        return self._recorded("query", super()._query, set, bin, equals)

    def _scan(self, set: str) -> list[Record]:
        return self._recorded("scan", super()._scan, set)

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        self._recorded("ensure_index", self._made, set, bin, kind)

    def _made(self, set: str, bin: str, kind: type) -> bool:
        super()._ensure_index(set, bin, kind)
        return True


_CALLS, _ROWS = EVENTS["store_calls"], EVENTS["store_rows"]
_BATCHES = ("operate_many", "delete_many")


def _of_batch(rows: Any) -> str:
    return "partial" if any(isinstance(row, LatchworkError) for row in rows) else "done"
