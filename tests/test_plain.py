"""What a message shows of a value: a line, however large, deep or ill-behaved the value is."""

from __future__ import annotations

import ast
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from latchwork import errors
from latchwork.errors import InvalidRequest, LatchworkError
from latchwork.plain import MOST_SAID, MOST_SHOWN, counted, exact_time, shortened, shown, shown_time, word

SRC = Path(__file__).parent.parent / "src"
REFUSALS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.InvalidRequest)
}


class Shows:
    """Its repr is what it is given, or raises that."""

    def __init__(self, what):
        self.what = what

    def __repr__(self):
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def deep(levels):
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (b"\0", "b'\\x00'"),
        (None, "None"),
        ([1, "b"], "[1, 'b']"),
        ((1,), "(1,)"),
        ({"a": 1}, "{'a': 1}"),
        ([], "[]"),
        (set(), "set()"),
        (list(range(6)), "[0, 1, 2, 3, 4, 5]"),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, ... (length 1000)]"),
        ("x" * 1000, f"'{'x' * 50}'... (length 1000)"),
        (b"x" * 1000, f"b'{'x' * 50}'... (length 1000)"),
        ("x" * 98, f"'{'x' * 98}'"),
        (10**5000, "a whole number of 16610 bits"),
        ([10**5000], "[a whole number of 16610 bits]"),
        (Shows(ValueError("no")), "a Shows that cannot be shown"),
        (Shows(RecursionError()), "a Shows that cannot be shown"),
        (Shows("two\nlines\x1b[0m"), "two\\nlines\\x1b[0m"),
        ("\ud800", "'\\ud800'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_in_one_line_whatever_its_repr_does(value, text):
    assert shown(value) == text


def test_a_value_in_which_much_is_nested_is_shown_as_deep_as_one_reads():
    assert shown(deep(200_000)) == "[[[[...]]]]"
    assert shown({1: {2: {3: {4: 5}}}}) == "{1: {2: {3: {...}}}}"


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, b"x" * 10**7, ["x" * 10**6] * 10**6, dict.fromkeys(range(100), "x" * 10**6), Shows("x" * 10**6)],
    ids=lambda value: type(value).__name__,
)
def test_of_a_large_value_no_more_is_shown_than_a_message_bears(value):
    text = shown(value)
    assert len(text) <= MOST_SHOWN
    assert text.startswith(shown(value)[:3])


def test_a_shortened_text_has_its_begin_and_its_end():
    assert shortened("short", 10) == shortened("short", 5) == "short"
    text = shortened("begin" + "x" * 1000 + "end", 40)
    assert len(text) == 40
    assert (text[:5], text[-3:]) == ("begin", "end")


def test_no_message_of_an_error_floods_a_log():
    error = LatchworkError("why " + "x" * 10**6 + " remedy")
    assert len(str(error)) == MOST_SAID
    assert str(error).endswith("remedy")


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (86_400, "1 day"),
        (15 * 86_400, "15 days"),
        (36 * 3600, "36 h"),
        (90 * 60, "90 min"),
        (61, "61 s"),
        (0.5, "0.5 s"),
        (600.0005, "600.0005 s"),
        (1_234_567, "1,234,567 s"),
        (0, "0 s"),
        (-1, "-1 s"),
    ],
)
def test_a_setting_is_shown_exactly_in_a_unit_that_people_use(span, shown):
    assert exact_time(timedelta(seconds=span)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (75, "75 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2 * 86_400, "2 days")],
)
def test_a_length_of_time_is_shown_in_a_unit_of_which_it_has_two(seconds, shown):
    assert shown_time(seconds) == shown


def test_one_thing_is_not_called_by_a_plural():
    assert [counted(n, "message") for n in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]


def test_an_interrupt_while_a_value_is_shown_is_not_swallowed():
    class Interrupted:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(Interrupted())


def test_values_that_a_refusal_names_are_shown_by_the_one_shortener():
    """An `!r` in the message of a refusal writes out what a caller gave; only what is `self` is known to be short."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        parsed = "!r}" in text and any(f"{name}(" in text for name in REFUSALS)  # to parse all takes seconds
        for call in ast.walk(ast.parse(text)) if parsed else ():
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in REFUSALS:
                for part in ast.walk(call):
                    is_repr = isinstance(part, ast.FormattedValue) and part.conversion == ord("r")
                    if is_repr and getattr(part.value, "id", "") != "self":
                        found.append(f"{path.relative_to(SRC)}:{part.lineno}")
    assert found == []
    assert InvalidRequest.__name__ in REFUSALS


def test_a_word_of_a_command_is_one_word_for_a_shell_and_an_id_of_publish_stays_as_it_is():
    for plain in ("orders@audit", "3f0c9ab1d2e4f50617289c77~6b09dfef.1.5", "a/b:c"):
        assert word(plain) == plain
    for text in ("order 7", "$(reboot)", "a;b", "~root", "", "it's", "`x`", "día"):
        assert shlex.split(word(text)) == [text]
        assert word(text) != text
    assert word("a\nb") == "'a\\nb'", "it stays in its line"
