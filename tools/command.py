"""For the docs site: every command of `latchwork`, with its arguments and options, from the code. A hook of mkdocs.

They stand where the page says `<!-- commands -->`, and the global options where it says `<!-- global options -->`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Any, get_args

from typer.main import get_command

from latchwork.cli.app import COMMANDS, app, loaded

PAGE = "reference/command.md"
IN_HELP = re.compile(r" \[default: (.*)\]$")
TYPED = re.compile(r"(?<!\S)--[a-z-]+[a-z]|\$[A-Z_]+[A-Z]")
KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER"}


def commands() -> Iterator[tuple[str, Any]]:
    """Each command as it is typed, without `latchwork`, in the order of the help; groups of commands are left out."""
    for name in COMMANDS:
        yield from below(name, loaded(name))


def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command itself, or the commands of a group."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield name, command
        return
    for word, each in inner.items():
        yield from below(f"{name} {word}", each)


def reference() -> str:
    """The commands in Markdown: a section for each of the first words, and within it one for each command."""
    lines: list[str] = []
    groups: set[str] = set()
    for name, command in commands():
        first, *rest = name.split(" ")
        if first not in groups:
            groups.add(first)
            lines += [f"## {first}", ""]
            lines += [COMMANDS[first].help, ""] if rest else []
        if rest:
            lines += [f"### {name}", ""]
        lines += explained(name, command)
    return "\n".join(lines)


def explained(name: str, command: Any) -> list[str]:
    """How a command is called, what it does, an example, and a table of its arguments and options."""
    text, _, example = command.help.partition("Example: ")
    paragraphs = [" ".join(each.split()) for each in text.strip().split("\n\n")]
    lines = [line for each in paragraphs for line in (marked(each), "")]
    lines += ["```bash", " ".join(example.split()), "```", ""] if example else []
    shown = [each for each in command.params if not each.hidden and each.name != "help"]
    return lines + (table(shown) if shown else [])


def table(parameters: list[Any]) -> list[str]:
    """A table of arguments and options."""
    rows = [f"| {spelled(each)} | {default(each)} | {meaning(each)} |" for each in parameters]
    return ["| argument or option | default | |", "|---|---|---|", *rows, ""]


def is_option(parameter: Any) -> bool:
    """Whether it is an option, and no argument."""
    return bool(parameter.opts[0].startswith("-"))


def spelled(parameter: Any) -> str:
    """The parameter as it is typed."""
    if not is_option(parameter):
        return f"`{parameter.metavar or parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}`"
    value = "" if parameter.is_flag or parameter.count else f" {parameter.metavar or kind(parameter)}"
    return ", ".join(f"`{name}{value}`" for name in parameter.opts)


def kind(parameter: Any) -> str:
    """The kind of value that an option takes."""
    annotation = parameter.type_descriptor.annotation
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, enum.Enum):
            return "|".join(str(each.value) for each in part)
        if part in KINDS:
            return KINDS[part]
    return "TEXT"


def default(parameter: Any) -> str:
    """The value that a parameter has where it is not given."""
    inside = IN_HELP.search(parameter.help or "")
    given = getattr(parameter.default, "value", parameter.default)
    text = "required" if parameter.required else marked(inside[1]) if inside else ""
    if not text and given not in (None, (), [], "", False) and not getattr(parameter, "count", False):
        text = f"`{given:g}`" if isinstance(given, float) else f"`{given}`"
    variable = f"`${parameter.envvar}`" if parameter.envvar else ""
    return ", else ".join(filter(None, (variable, text)))


def meaning(parameter: Any) -> str:
    """The help of a parameter, and the numbers that it may be."""
    text = marked(IN_HELP.sub("", parameter.help or "")).replace("|", "\\|")
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is None or getattr(parameter, "count", False):
        return text
    return f"{text}; {low:,} to {high:,}" if high is not None else f"{text}; at least {low:,}"


def marked(text: str) -> str:
    """The text with options and variables as code, and no sign that Markdown would take for its own."""
    parts = " ".join(text.split()).split("`")  # each second one is code already
    parts[::2] = [TYPED.sub(r"`\g<0>`", re.sub(r"[<*\[\]]", r"\\\g<0>", part)) for part in parts[::2]]
    return "`".join(parts)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str | None:
    """Called once for each page."""
    return filled(markdown) if page.file.src_uri == PAGE else None


def filled(markdown: str) -> str:
    """The page with what the code says."""
    common = "\n".join(table([each for each in get_command(app).params if each.name != "help"]))
    return markdown.replace("<!-- global options -->", common).replace("<!-- commands -->", reference())
