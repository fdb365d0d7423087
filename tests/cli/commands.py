"""The commands that there are, so that a table of them can be held to be whole."""

from __future__ import annotations

from latchwork.cli.app import COMMANDS, loaded


def command_names():
    """Every command by its words: `latch create`, `stats`."""
    return sorted(" ".join(words) for words, _ in leaves())


def leaves():
    """Every command, with its words."""
    for name in COMMANDS:
        yield from _leaves(loaded(name), (name,))


def _leaves(command, words):
    if not hasattr(command, "commands"):
        yield words, command
    else:
        for name, found in command.commands.items():
            yield from _leaves(found, (*words, name))
