"""For the docs site: the lines of a docstring that explain parameters, `name: text`, become a list.

An extension of griffe, which reads the docstrings for mkdocstrings. In Markdown such lines would run together.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

PARAMETER = re.compile(r"`?([a-z_][a-z0-9_]*)`?((?:, `?[a-z_][a-z0-9_]*`?)*): (?=\S)")


def as_list(text: str) -> str:
    """The text with each line that explains parameters as an item of a list; what goes on below it is indented."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        # In the middle of a sentence such a word explains no parameter.
        begins = in_list or not lines or not lines[-1] or lines[-1].endswith((".", ":"))
        if begins and (found := PARAMETER.match(line)):
            if not in_list and lines and lines[-1]:
                lines.append("")
            lines.append(f"- **{found[1]}{found[2]}**: {line[found.end() :]}")
            in_list = True
            continue
        if in_list and line and not line.startswith(" "):
            lines.append("")  # the list ends here
            in_list = False
        elif not line:
            in_list = False
        lines.append(line)
    return "\n".join(lines)


class Parameters(Extension):
    """Rewrites the docstring of everything that is documented."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for each object."""
        if obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)
