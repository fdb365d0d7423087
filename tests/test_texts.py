"""The list of all pages for programs that read the docs."""

from __future__ import annotations

from tools.texts import llms


def test_each_page_is_listed_with_its_title_and_its_first_sentence():
    page = "# Locks\n\n```\nmake\n```\n\nA [lock](locks.md) has\na fence. It is a number.\n"
    text = llms(iter([("guide/locks.md", page), ("empty.md", "no title")]), "Latchwork")
    assert text.splitlines() == [
        "# Latchwork",
        "",
        "> Every page in Markdown; the link is its path below `docs/`.",
        "",
        "- [Locks](guide/locks.md): A lock has a fence",
    ]
