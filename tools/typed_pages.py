"""The Python of the README and of each page as a module of its own, for the type checker of `make lint`.

python -m tools.typed_pages build/typing/pages

An import that several programs of a page have is written once. The page about Spark is left out: its tests give its
code the names that it does not define.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^import \w+\n", re.MULTILINE)


def write(folder: Path) -> int:
    """Write the modules; return how many there are."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = BLOCK.findall(page.read_text())
        if blocks and page.name != "spark.md":
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (folder / f"{name}.py").write_text(_each_import_once("\n".join(blocks)))
            written += 1
    return written


def _each_import_once(text: str) -> str:
    lines: dict[str, int] = {}
    for found in IMPORT.finditer(text):
        lines.setdefault(found[0], found.start())
    return IMPORT.sub(lambda found: found[0] if lines[found[0]] == found.start() else "\n", text)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])), "pages have programs")
