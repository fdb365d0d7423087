"""The one JSON document that a command with `--json` prints: its own, or that of its failure."""

from __future__ import annotations

from typing import Any

from .jsontext import to_json


class Answer:
    """What a command has on stdout, with `--json`.

    is_json: whether `--json` was given. is_there: whether a document is printed, or partly: then no other may follow.
    has_lines: whether it is a document a line instead, of which that of a failure is the last one.
    """

    def __init__(self, *, is_json: bool) -> None:
        self.is_json, self.is_there, self.has_lines = is_json, False, False

    def give(self, value: Any) -> None:
        """Print a document."""
        text = to_json(value)
        self.is_there = True
        print(text, flush=True)  # noqa: T201 - the command's output

    def give_up(self, code: str, message: str, **done: Any) -> None:
        """Print the document of a failure, where it may follow. done: what was done before, by name."""
        if self.is_json and (self.has_lines or not self.is_there):
            self.give({"error": code, "message": message, **done})
