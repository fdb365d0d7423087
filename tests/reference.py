"""The API reference as its pages ask for it: what they document, and what a reader of it meets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import griffe
import yaml

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
BLOCK = re.compile(r"^::: (\S+)\n((?: +\S.*\n)*)", re.MULTILINE)
PACKAGES = (
    "", "coord", "queue", "spark", "store", "observe", "testing",
    "aio", "asgi", "console", "django", "airflow", "errors", "observe.prometheus", "observe.opentelemetry",
    "store.contract",
)  # fmt: skip
"""The packages and modules whose public classes and functions users import."""
VALUES = ("Enum", "NamedTuple", "Protocol", "Exception", "Error", "Struct")


SHARING = re.compile(
    r"safe\s+to\s+share\s+between\s+(its\s+)?threads|[Tt]hreads\s+may\s+share|in\s+one\s+thread\s+at\s+a\s+time|"
    r"one\s+thread\s+in\s+it|see\s+`latchwork\.(coord|queue)\.",  # the class that a twin is of
    re.IGNORECASE,
)
"""How a docstring says who may share a handle."""


class Documented(NamedTuple):
    """A class, a function or a constant of the reference, and which of its members its page leaves out."""

    thing: griffe.Object
    left_out: tuple[re.Pattern[str], ...]


def load(folder: Path) -> griffe.Module:
    """Read the package `latchwork`, for which `folder` gets a link to src."""
    (folder / "latchwork").symlink_to(ROOT / "src")
    return griffe.load("latchwork", search_paths=[folder], resolve_aliases=True)


def target(thing: Any) -> Any:
    """The definition itself, for a name that a package hands on."""
    return thing.final_target if thing.is_alias else thing


def public(module: Any) -> Iterator[Any]:
    """What a module offers: the names of its `__all__`, or the classes and functions that it defines."""
    for name in module.exports or module.members:
        member = module.members[str(name)]
        if module.exports or (not member.is_alias and not name.startswith("_") and not member.is_attribute):
            found = target(member)
            if not found.is_module:
                yield found


def documented(package: griffe.Module, pages: Path = PAGES) -> dict[str, Documented]:
    """Everything that the pages show, by its path."""
    found = {}
    for page in sorted(pages.glob("*.md")):
        for path, block in BLOCK.findall(page.read_text()):
            options = (yaml.safe_load(block) or {}).get("options", {})
            filters = tuple(re.compile(each[1:]) for each in options.get("filters", ["!^_"]) if each.startswith("!"))
            shown = target(package.modules_collection[path])
            if not shown.is_module:
                things = [shown]
            elif names := options.get("members"):
                things = [target(shown[name]) for name in names]
            else:
                things = [each for each in public(shown) if not any(left.search(each.name) for left in filters)]
            found |= {each.path: Documented(each, filters) for each in things}
    return found


def returned(known: Documented, package: griffe.Module) -> Iterator[tuple[str, str]]:
    """The paths of what the documented methods and attributes of a class give, or a function, and who gives each."""
    thing = known.thing
    if thing.is_function:
        yield from ((path, thing.path) for path in paths(thing.returns))
    members = thing.all_members.items() if thing.is_class else ()
    for name, alias in members:
        if any(left.search(name) for left in known.left_out):
            continue
        member = target(alias)
        if member.is_function:
            given = paths(member.returns)
        elif f"`{name}`" in docstring(thing) or "property" in member.labels or is_value(thing):
            given = paths(member.annotation or member.value)
        else:
            continue
        yield from ((path, f"{thing.path}.{name}") for path in given)


def paths(expression: Any) -> list[str]:
    """The paths of this package that an annotation, or the value of an attribute, begins with or contains."""
    if isinstance(expression, griffe.ExprCall):
        expression = expression.function
    if not isinstance(expression, griffe.Expr):
        return []
    names = [expression, *expression.iterate(flat=True)]
    found = {each.canonical_path for each in names if isinstance(each, griffe.ExprName)}
    return sorted(path for path in found if path.startswith("latchwork.") and "(" not in path)


def docstring(thing: griffe.Object) -> str:
    """The text of its docstring, or nothing."""
    return thing.docstring.value if thing.docstring else ""


def is_value(thing: Any) -> bool:
    """Whether it is a class of unchangeable values, of errors, or of the shape of something: nothing that is shared."""
    kinds = {str(base).split("[", 1)[0].rsplit(".", 1)[-1] for base in [*thing.bases, *[b.name for b in thing.mro()]]}
    frozen = any("frozen=True" in str(decorator.value) for decorator in thing.decorators)
    return frozen or any(kind.endswith(VALUES) for kind in kinds)
