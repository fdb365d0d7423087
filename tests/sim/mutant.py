"""What a mutant is: a rule that is taken out, by a patch of the code for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """A rule that is taken out: which primitive, what is wrong then, which rule it was, and how."""

    primitive: str
    name: str
    rule: str
    patch: Callable[[], Any]
    scripted: bool = False
    """Too rare for chance: a script in `test_counterexamples.py` shows it."""
    first: int = 0
    """The seed to begin with, for one that is rare."""


def swapped(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """The patch that puts something else in its place."""
    return lambda: mock.patch.object(owner, name, value)
