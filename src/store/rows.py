"""The outcomes of a batch: for each row its value, or its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ..errors import LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
U = TypeVar("U")
Kinds = type[LatchworkError] | tuple[type[LatchworkError], ...]


class Rows(list[T | LatchworkError], Generic[T]):
    """A list with the outcome of each row of a batch, in order: its value, or its error.

    sent_again: whether some rows were sent more than once, so the others may have been answered long before them.
    """

    sent_again = False

    def raise_unless(self, *harmless: type[LatchworkError]) -> Rows[T]:
        """Raise the first error that is not of these kinds; return the rows if there is no such error."""
        for row in self:
            if isinstance(row, LatchworkError) and not isinstance(row, harmless):
                raise row
        return self

    def settled(self, *undone: type[LatchworkError]) -> Rows[bool]:
        """Return for each row True where it was done, False where it was not, its error where that is not known.

        undone: the errors that say that it was not done; by default `NotFound` and `Refused`.
        """
        refusals = undone or (NotFound, Refused)
        return Rows([
            row is not False if not isinstance(row, LatchworkError) else False if isinstance(row, refusals) else row
            for row in self
        ])  # fmt: skip

    def errors(self) -> list[LatchworkError]:
        """Return the errors, in order."""
        return [row for row in self if isinstance(row, LatchworkError)]

    def values(self, instead: D) -> list[T | D]:
        """Return the values, with `instead` in place of each error."""
        return [instead if isinstance(row, LatchworkError) else row for row in self]

    def sift(self, keys: Iterable[K]) -> tuple[dict[K, T], dict[K, LatchworkError]]:
        """Return the values and the errors, by these keys: one for each row."""
        values: dict[K, T] = {}
        errors: dict[K, LatchworkError] = {}
        for key, row in zip(keys, self, strict=True):
            if isinstance(row, LatchworkError):
                errors[key] = row
            else:
                values[key] = row
        return values, errors

    def then(self, call: Callable[[Mapping[int, T]], Iterable[U | LatchworkError]]) -> Rows[U]:
        """Return the outcomes of a further call for the rows that have no error; the others keep their error.

        call: is given the values of these rows by their places; not called where there are none.
        """
        values, _ = self.sift(range(len(self)))
        rows: Rows[Any] = Rows(self)
        return rows.merge(values, call(values)) if values else rows

    def recover(
        self, kinds: Kinds, call: Callable[[Mapping[int, LatchworkError]], Iterable[T | LatchworkError]]
    ) -> Rows[T]:
        """Put the outcomes of another call in place of the errors of these kinds; return the rows.

        call: is given these errors by their places; not called where there are none.
        """
        errors = {n: row for n, row in enumerate(self) if isinstance(row, LatchworkError) and isinstance(row, kinds)}
        return self.merge(errors, call(errors)) if errors else self

    def merge(self, places: Iterable[int], rows: Iterable[T | LatchworkError]) -> Rows[T]:
        """Put these outcomes in these places; return the rows."""
        for place, row in zip(places, rows, strict=True):
            self[place] = row
        return self


def attempted(n: int, call: Callable[[], Sequence[T | LatchworkError]]) -> Rows[T]:
    """Return the outcomes of n rows as the call returns them; where it raises an error, that of each row."""
    try:
        rows = call()
        return rows if isinstance(rows, Rows) else Rows(rows)
    except LatchworkError as failure:
        return Rows([failure] * n)


def after_repeat(before: Any, outcome: Any) -> Any:
    """Return what is known of a row that was sent again: a repeat that was not applied leaves it in doubt."""
    if not isinstance(before, OutcomeUnknown):
        return outcome
    if isinstance(outcome, Unavailable):
        return before
    if isinstance(outcome, LatchworkError):
        outcome.details["doubt"] = True
    return True if outcome is False else outcome  # what is absent after doubt was deleted by the earlier attempt


def chunked(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield the items in order, up to `most` at a time."""
    for begin in range(0, len(items), most):
        yield items[begin : begin + most]
