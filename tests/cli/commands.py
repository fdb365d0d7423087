"""The commands that there are, so that a table of them can be held to be whole."""

from __future__ import annotations

from typer.main import get_command

from latchwork.cli.app import app


def command_names():
    """Every command by its words: `latch create`, `stats`."""
    return sorted(_names(get_command(app), ""))


def _names(command, prefix):
    for name, found in getattr(command, "commands", {}).items():
        if hasattr(found, "commands"):
            yield from _names(found, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"
