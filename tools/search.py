"""For the docs site: the search shows the pages for users before those about proofs and figures. A hook of mkdocs."""

from __future__ import annotations

from typing import Any

FIRST = ("getting-started", "concepts", "glossary", "guide/", "fencing", "spark", "operations", "multi-dc")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> None:
    """Called once for each page; the search reads the page's `search`."""
    page.meta["search"] = {"boost": 20 if page.file.src_uri.startswith(FIRST) else 1}
