"""One read of many records for several waits, and its results (docs/protocols P19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from ...errors import LatchworkError, NotFound
from ...store.model.ops import Op, Read, ReadAll
from ...store.port import Key, Record, RecordStore, Update

ReadAnswers: TypeAlias = dict[Key, Record | LatchworkError | None]
"""The records that were read: None for one that does not exist, the error of one that could not be read."""
BATCH = 1_000
"""Records in one call, at most."""
WIDE = 32
"""Bins that are asked for of each of many records, at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A record as it was read.

    record: None if there is none.
    asked, answered: seconds (monotonic), before the read was sent and after its answer came: the record was so at some
        time between the two.
    """

    record: Record | None
    asked: float
    answered: float


@dataclass(frozen=True, slots=True)
class SharedRead:
    """One read for several waits.

    number: its place among all reads of the process.
    found: the records, or why one could not be read; without the ones that were known to be unchanged.
    version: what the store's `data_version` said before it.
    asked, answered: as of an `Answer`.
    """

    number: int
    found: ReadAnswers
    version: object
    asked: float
    answered: float


class ReadRequest(Protocol):
    """A record that is to be read, and the bins of it; none = all."""

    key: Key
    bins: tuple[str, ...]


def found_for(store: RecordStore, waits: Iterable[ReadRequest]) -> ReadAnswers:
    """Return the records of these waits, each with the bins that any of them reads; or why one could not be read."""
    bins: dict[Key, tuple[str, ...]] = {}
    for one in waits:
        known = bins.get(one.key)
        if known is None or not one.bins:
            bins[one.key] = one.bins
        elif known and known != one.bins:
            bins[one.key] = tuple(dict.fromkeys((*known, *one.bins)))
    keys = list(bins)
    if len(keys) == 1:
        return {keys[0]: _outcome(lambda: store.get(keys[0], *bins[keys[0]]))}
    found: ReadAnswers = {}
    for begin in range(0, len(keys), BATCH):
        some = keys[begin : begin + BATCH]
        found.update(_plainly(store, some, bins) or _row_by_row(store, some, bins))
    return found


def _plainly(store: RecordStore, keys: Sequence[Key], bins: Mapping[Key, tuple[str, ...]]) -> ReadAnswers:
    """Return the records with the bins that are read of any of them, which costs a seventh of a read of each; nothing
    where one of them cannot be read, or where some would be read whole and others not.
    """
    named = [bins[key] for key in keys if bins[key]]
    together = dict.fromkeys(bin for one in named for bin in one)
    if len(named) not in (0, len(keys)) or len(together) > WIDE:
        return {}
    found = _outcome(partial(store.get_many, keys, *together))
    return {} if isinstance(found, LatchworkError) else dict(zip(keys, found, strict=True))


def _row_by_row(store: RecordStore, keys: Sequence[Key], bins: Mapping[Key, tuple[str, ...]]) -> ReadAnswers:
    """Return the records, each with its own bins; one that cannot be read fails alone."""
    answers = _outcome(partial(store.operate_many, [Update(key, reads(bins[key])) for key in keys]))
    found: ReadAnswers = {}
    for place, key in enumerate(keys):
        row = answers if isinstance(answers, LatchworkError) else answers[place]
        if isinstance(row, NotFound):
            found[key] = None
        else:
            found[key] = row if isinstance(row, LatchworkError) else record_of(key, bins[key], row)
    return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LatchworkError as failure:
        return failure


def reads(bins: Sequence[str]) -> tuple[Op, ...]:
    """Return the operations that read these bins; all if none is named."""
    return tuple(Read(bin) for bin in bins) if bins else (ReadAll(),)


def record_of(key: Key, bins: Sequence[str], values: Sequence[Any]) -> Record:
    """Return the record that these operations have read."""
    found = dict(zip(bins, values, strict=True)) if bins else values[-1]
    return Record(key, {bin: value for bin, value in found.items() if value is not None})


def part(record: Record | None, bins: Sequence[str]) -> Record | None:
    """Return the record with these bins alone."""
    if record is None or not bins or record.bins.keys() <= set(bins):
        return record
    return Record(record.key, {bin: record.bins[bin] for bin in bins if bin in record.bins})


def same(one: Record | None, other: Record | None) -> bool:
    """Whether two reads have found equal bins."""
    return one is other or (one is not None and other is not None and one.bins == other.bins)
