"""What the scripts share: names, and the mutants by name."""

from __future__ import annotations

from unittest import mock

from latchwork.store import Key

from ..mutants import MUTANTS

KEY = Key("sim", "record")


def rule(primitive, name):
    """How the mutants take this rule out."""
    return next(mutant.patch for mutant in MUTANTS if (mutant.primitive, mutant.name) == (primitive, name))


def patched(owner, name, value):
    """Something else in its place."""
    return lambda: mock.patch.object(owner, name, value)
