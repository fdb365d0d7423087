"""How findings are printed: a line each, its remedy below; broken at the width of a terminal, and whole in a pipe.

What a person must act on comes last, nearest the prompt.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from textwrap import TextWrapper

from ..observe.findings import OK, PROBLEM, WARNING, Finding

_WHAT, _REMEDY = " " * 9, " " * 12


def lines_of(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the lines of findings, problems last. On a terminal all sound parts share one line."""
    found = sorted(findings, key=lambda one: (OK, WARNING, PROBLEM).index(one.state))
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else sys.maxsize
    for finding in _folded(found) if on_terminal else found:
        yield from block_of(finding, width)


def block_of(finding: Finding, width: int) -> list[str]:
    """Return the lines of one finding, in this number of columns."""
    lines = _wrapped(f"{finding.state:8} {finding.what}", _WHAT, width)
    return lines + (_wrapped(f"{_WHAT}-> {finding.remedy}", _REMEDY, width) if finding.remedy else [])


def _folded(found: list[Finding]) -> Iterator[Finding]:
    """Yield the findings; all sound parts become one finding."""
    parts = dict.fromkeys(one.sound for one in found if one.sound)
    for finding in found:
        if not finding.sound:
            yield finding
        elif parts:
            yield Finding(OK, f"sound: {', '.join(parts)}")
            parts.clear()


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    wrapper = TextWrapper(
        max(width, 40),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    lead = len(text) - len(text.lstrip())
    wrapper.initial_indent = text[:lead]
    return wrapper.wrap(text[lead:])
