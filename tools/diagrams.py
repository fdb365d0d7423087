"""For the docs site: Mermaid, which draws the diagrams, comes from the site, if `make docs` has it. A hook of mkdocs.

Without it the theme's script loads it from a content delivery network. Each diagram stands in a box of its own, which
scrolls on a narrow screen.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.utils import get_relative_url

DIAGRAM = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)
THEME = re.compile(r'(?=<script src="[^"]*assets/javascripts/bundle)')
SCRIPT = "assets/mermaid.min.js"


def source() -> Path | None:
    """Mermaid's script as `make docs` has fetched it, None without it."""
    return next(Path("build").glob("mermaid@*/mermaid.min.js"), None)


def on_page_content(html: str, **_: Any) -> str:
    """Called once for each page, with its content."""
    return DIAGRAM.sub(r'<div class="diagram">\g<0></div>', html)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Called once for each page, with the whole of it: the theme uses a Mermaid that was loaded before it."""
    if not source() or 'class="diagram"' not in output:
        return output
    return THEME.sub(f'<script src="{get_relative_url(SCRIPT, page.url)}"></script>', output, count=1)


def on_post_build(config: Any) -> None:
    """Called once, at the end."""
    if script := source():
        shutil.copy(script, Path(config["site_dir"]) / SCRIPT)
