"""A line of `latchwork doctor`: what was found, whether it is a problem, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    state: str
    what: str
    remedy: str = ""
