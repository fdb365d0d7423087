"""A few words that were once used for other things have a term of the field instead (docs/glossary.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]
TERMS = {
    "roster": "candidates",
    "anew": "again, reset",
    "bury": "write a tombstone",
    "buried": "a tombstone",
    "struck off": "removed",
    "stands for office": "takes part in an election",
    "let go": "release, abandon",
    "whomever": "the process that",
    "for ever": "without a limit",
}
"""At most ten, each with the term to write."""
WORDS = re.compile(rf"(?<![a-z_])({'|'.join(TERMS)})(?![a-z_])")


def found(text):
    """The words of the list in a text."""
    return WORDS.findall(text.lower())


def test_the_terms_of_the_field_are_used():
    assert len(TEXTS) > 200, "pages and modules are found"
    assert len(TERMS) <= 10, "a longer list is a language of its own"
    lines = ((text, n, line) for text in TEXTS for n, line in enumerate(text.read_text().splitlines(), 1))
    assert [f"{text.relative_to(ROOT)}:{n}: {words}" for text, n, line in lines if (words := found(line))] == []


@pytest.mark.parametrize("text", ["It waits for ever.", "Buried slots", "let go of it"])
def test_such_a_word_is_noticed(text):
    assert found(text)
    assert not found("A threshold of a renewed shire.")
