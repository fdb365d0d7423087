"""Arguments that nobody means to give: of every other type, without end, without bounds, or not fit for any store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

try:
    import numpy as np
except ImportError:  # it comes with the extra of Spark
    np = None


class Silent:
    """Nothing can be said about it: its repr raises."""

    def __repr__(self):
        raise ValueError("no repr")


class Loud:
    """Its repr floods whoever asks for it, and has an order to the terminal in it."""

    def __repr__(self):
        return "\x1b[2J\n" + "loud" * 100_000


def deep(levels: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


def _of_numpy() -> dict[str, Callable[[], Any]]:
    return {
        "whole number": lambda: np.int64(7),
        "fraction": lambda: np.float32(1.5),
        "no number": lambda: np.float64("nan"),
        "switch": lambda: np.bool_(True),
        "text": lambda: np.str_("x"),
        "list": lambda: np.zeros(3),
        "date": lambda: np.datetime64("2030-01-01"),
        "map": lambda: {np.int64(1): np.int64(2)},
    }


_HUGE = "h" * 1_200_000
"""Larger than a record."""
_DEEP_LIST, _DEEP_MAP = deep(20_000), deep(20_000, dict)
MAKERS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "0.5": lambda: 0.5,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "-2**63-1": lambda: -(2**63) - 1,
    "2**200": lambda: 2**200,
    "10**5000": lambda: 10**5000,
    "1e300": lambda: 1e300,
    "a decimal": lambda: Decimal("sNaN"),
    "empty text": lambda: "",
    "text": lambda: "x",
    "no": lambda: "no",
    "huge text": lambda: _HUGE,
    "text of 300": lambda: "\U0001f600" * 300,
    "half a character": lambda: "a\ud800b",
    "NUL": lambda: "a\0b",
    "an order": lambda: "x\ntruncate-namespace:namespace=test\n",
    "a terminal's order": lambda: "\x1b[2J\u202e",
    "separators": lambda: "a#b/c@d",
    "dots": lambda: "..",
    "empty bytes": lambda: b"",
    "bytes": lambda: b"\xff\0\x1b",
    "an empty list": list,
    "a list": lambda: [1, "a", None],
    "a list of nothing": lambda: [None],
    "a list of texts": lambda: ["a", "a"],
    "a list of half characters": lambda: ["a\ud800"],
    "a list of lists": lambda: [[1], [2]],
    "a huge list": lambda: ["h"] * 20_000,
    "a deep list": lambda: _DEEP_LIST,
    "a list of 63 levels": lambda: deep(63),
    "a tuple": lambda: (1, 2),
    "a set": lambda: {1},
    "an empty map": dict,
    "a map": lambda: {"a": object()},
    "a map of texts": lambda: {"a": "b"},
    "a map of numbers": lambda: {1: 2},
    "a map of half characters": lambda: {"a\ud800": "b\ud800"},
    "a map of huge texts": lambda: {"a": _HUGE},
    "a map of tuples": lambda: {(1, 2): (3, 4)},
    "a deep map": lambda: _DEEP_MAP,
    "silent": Silent,
    "loud": Loud,
    "a list of silents": lambda: [Silent()],
    "a map of silents": lambda: {Silent(): Silent()},
    "an object": object,
    "a type": lambda: int,
    "a function": lambda: len,
    "no time": lambda: timedelta(0),
    "a negative time": lambda: timedelta(seconds=-1),
    "a short time": lambda: timedelta(microseconds=1),
    "an endless time": lambda: timedelta.max,
    "a naive date": lambda: datetime(2030, 1, 1),  # noqa: DTZ001 - what is to be refused
    "the first date": lambda: datetime.min.replace(tzinfo=timezone.utc),
    "the last date": lambda: datetime.max.replace(tzinfo=timezone.utc),
    "an exception": lambda: ValueError("x"),
    "a map of twins": lambda: {1: "a", "1": "b"},
    **{f"numpy's {name}": make for name, make in (_of_numpy() if np else {}).items()},
}
"""Each by a name for messages, made anew for each call."""
