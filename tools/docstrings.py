"""For the docs site: the lines of a docstring that explain parameters, `name: text`, become a list.

An extension of griffe, which reads the code for mkdocstrings. In Markdown such lines would run together. It also shows
what a value is made of (griffe knows only dataclasses), and the values that named defaults stand for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import (
    Class,
    ExprName,
    Extension,
    Function,
    GriffeError,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PARAMETER = re.compile(r"`?([a-z_][a-z0-9_]*)`?((?:, `?[a-z_][a-z0-9_]*`?)*): (?=\S)")
VALUES = {"Struct", "NamedTuple"}
SIMPLE = re.compile(r"[\d_.* ]+|timedelta\([\w=]+\)")


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


def last_name(base: Any) -> str:
    """The name of a base class, without its module and without the types in its brackets."""
    return str(base).split("[", 1)[0].rsplit(".", 1)[-1]


def made_of_fields(cls: Class) -> Function | None:
    """The constructor of a class whose annotated fields are its parameters; None for another class."""
    kinds = {last_name(base) for base in cls.bases}
    if not kinds & VALUES or "__init__" in cls.members:
        return None
    fields = [
        Parameter(name, kind=ParameterKind.positional_or_keyword, annotation=field.annotation, default=field.value)
        for name, field in cls.attributes.items()
        if field.annotation
        and not name.startswith("_")
        and "property" not in field.labels
        and "ClassVar" not in str(field.annotation)
    ]
    return Function("__init__", parameters=Parameters(*fields)) if fields else None


class Pages(Extension):
    """Rewrites the docstring of everything that is documented, and completes signatures."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for each object."""
        if obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Called once for each class."""
        if constructor := made_of_fields(cls):
            cls.set_member("__init__", constructor)
            cls.bases = [base for base in cls.bases if last_name(base) not in VALUES]

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once all of the package is read."""
        for function in functions(pkg):
            for parameter in function.parameters:
                parameter.default = spelled_out(parameter.default, pkg)


def everything(obj: Object) -> Iterator[Object]:
    """The object and all that is defined in it."""
    yield obj
    for member in obj.members.values():
        if not member.is_alias:
            yield from everything(member)


def spelled_out(default: Any, pkg: Module) -> Any:
    """The default of a parameter, or the number or length of time that it names."""
    if not isinstance(default, ExprName):
        return default
    try:
        value = pkg.modules_collection[default.canonical_path].value
    except (KeyError, AttributeError, GriffeError):
        return default
    return value if SIMPLE.fullmatch(str(value)) else default


def functions(pkg: Module) -> Iterator[Function]:
    """All functions and methods of the package."""
    yield from (found for found in everything(pkg) if isinstance(found, Function))
