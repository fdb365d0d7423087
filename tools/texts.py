"""For the docs site: `llms.txt`, a list of all pages in plain text, and `AGENTS.md`, how to change the project, for
programs that read instead of a person. A hook of mkdocs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTRIBUTING = "contributing/index.md"
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def llms(pages: Iterator[tuple[str, str]], site: str) -> str:
    """Return the list of pages. pages: the path of each in the docs, and its text."""
    lines = [f"- [{title}]({path}): {first}" for path, text in pages for title, first in [_summary(text)] if title]
    return "\n".join([f"# {site}", "", "> Every page in Markdown; the link is its path below `docs/`.", "", *lines, ""])


def _summary(text: str) -> tuple[str, str]:
    """Return the title of a page, and its first sentence."""
    title = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")
    paragraphs = [part for part in text.split("\n\n") if re.match(r"[A-Za-z*\[]|`(?!``)", part)]
    prose = " ".join(_LINK.sub(r"\1", paragraphs[0]).split()) if paragraphs else ""
    return title, prose.partition(". ")[0].rstrip(".:")


def on_post_build(*, config: Any, **_: Any) -> None:
    """Called once when the site is built."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    texts = ((str(path.relative_to(docs)), path.read_text()) for path in sorted(docs.rglob("*.md")))
    (site / "llms.txt").write_text(llms(texts, config["site_name"]))
    (site / "AGENTS.md").write_text((docs / CONTRIBUTING).read_text())
