"""Handles that live in one process, and say what to pickle instead."""

from __future__ import annotations

from typing import Any, ClassVar

from .errors import InvalidRequest


class Unpicklable:
    """A handle with threads, or with a state that another process would not share. Pickling raises `InvalidRequest`."""

    _INSTEAD: ClassVar[str]

    def __reduce__(self) -> Any:
        raise InvalidRequest(f"a {type(self).__name__} cannot be pickled: {self._INSTEAD}")
