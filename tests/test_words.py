"""Docstrings are plain English that stands by itself (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A docstring that opens so sends the reader to another one. Begin with a verb ("Return the ..."), with the thing ("The
# result of ...") or with "Whether".
OPENINGS = re.compile(r"(The same|Those|What came of|What becomes of|What became of)\b")
# In src/coord no metaphor stands for the field's term. Write: candidates (roster), attempt or acquisition (wish to
# have), remove (strike off), take part in an election (stand for), replace (succeed), no limit (for ever).
METAPHORS = re.compile(r"\b(roster|one wish to|strike off|struck off|stands? for (office|election)|for ever)\b", re.I)


def docstrings(folder: Path):
    """Where each docstring is, and its text."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
            if text:
                yield f"{path.relative_to(SRC)}:{getattr(node, 'name', 'module')}", text


def test_no_docstring_opens_with_words_that_make_the_reader_look_elsewhere():
    found = list(docstrings(SRC))
    assert len(found) > 1500, "docstrings were found at all"
    assert [f"{where}: {text[:80]}" for where, text in found if OPENINGS.match(text)] == []


def test_no_docstring_of_locks_latches_and_elections_speaks_in_metaphors():
    found = list(docstrings(SRC / "coord"))
    assert [f"{where}: {word[0]}" for where, text in found for word in METAPHORS.finditer(text)] == []


@pytest.mark.parametrize("text", ["Those of one queue.", "What came of it.", "The same for headers."])
def test_an_opening_that_is_banned_is_noticed(text):
    assert OPENINGS.match(text)
