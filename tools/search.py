"""For the docs site: the search shows the pages for users before those about proofs and figures. A hook of mkdocs."""

from __future__ import annotations

from typing import Any

FIRST = ("getting-started", "concepts", "glossary", "guide/", "fencing", "spark", "operations", "multi-dc")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> None:
    """Called once for each page; the search reads the page's `search`."""
    name = page.file.src_uri
    # Most who search for "queue" mean this one.
    page.meta["search"] = {"boost": 30 if name == "guide/work-queue.md" else 20 if name.startswith(FIRST) else 1}
