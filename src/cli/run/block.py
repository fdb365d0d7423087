"""How a command ends that ran under a lock, permits, a membership or a term, where the store does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...coord.lock import Grant
from ...errors import LatchworkError
from ..session import note

G = TypeVar("G", bound=Grant)


@contextmanager
def held_while_it_runs(grant: G, lease: float) -> Iterator[G]:
    """Hold the grant until the block ends. If it cannot be given back then, say so on stderr, and raise nothing.

    The command has ended by then, and its exit code says how: a store that is away must not make a failure of it.

    Raises `LeaseLost` if the grant was lost in the block.
    """
    try:
        with grant:
            yield grant
    except LatchworkError as failure:
        if failure is not grant.unreleased:
            raise
    note_unreleased(grant.unreleased, lease)


def note_unreleased(failure: LatchworkError | None, lease: float) -> None:
    """Say on stderr why what the command held could not be given back, if it could not."""
    if failure is not None:
        note(
            "the command has ended, and the store has not confirmed that what it held is given back; if it is not, it "
            f"counts as a dead holder's once its lease of {lease:g} s is over: {failure} [{failure.code}]"
        )
