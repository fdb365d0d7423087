"""How findings are printed: a line each, its remedy below; broken at the width of a terminal, and whole in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from textwrap import TextWrapper

from ..observe.findings import Finding

_WHAT, _REMEDY = " " * 9, " " * 12


def lines_of(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the lines of these findings."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for finding in findings:
        yield from _wrapped(f"{finding.state:8} {finding.what}", _WHAT, width)
        if finding.remedy:
            yield from _wrapped(f"{_WHAT}-> {finding.remedy}", _REMEDY, width)


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
