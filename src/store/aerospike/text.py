"""Stored text that is not UTF-8, which a client in another language may have written.

The client ends the process with a segmentation fault if a row of a batch has such text (seen with 19.3.0; its source is
so from 19.0 on): it makes no record of the row, and releases that record all the same. So within `lenient` the text is
decoded nevertheless, its bad bytes as lone surrogates, as Python decodes names of files; the rows that have any are
then refused here. In all other threads, and outside of it, text is decoded as usual.

It uses Python's own handler of decoding errors ("strict"), which is called for each such text and only then; so it
costs nothing if all text is sound. The handler is one for the whole process: it is replaced while such calls are under
way, and no longer. It passes on to the one that was there before whatever another thread decodes meanwhile.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from ...forks import reset_in_child
from ...seams import SYSTEM

Handler = Callable[[UnicodeError], tuple[str | bytes, int]]
_escape = codecs.lookup_error("surrogateescape")


class Strange:
    """Whether a text that is no UTF-8 has been met."""

    met = False


@contextmanager
def lenient() -> Iterator[Strange]:
    """Decode whatever text the client gets in this thread; says whether some of it was no UTF-8."""
    strange = Strange()
    token = _present.set(strange)
    _replacement.begin()
    try:
        yield strange
    finally:
        _replacement.end()
        _present.reset(token)


def strange_bin(bins: Mapping[str, Any]) -> str | None:
    """Return the name of a bin with text that is no UTF-8, at any depth; None where there is none."""
    return next((name for name, value in bins.items() if _is_strange(value)), None)


def _is_strange(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= one <= "\udfff" for one in value)
    if isinstance(value, dict):
        return any(_is_strange(key) or _is_strange(one) for key, one in value.items())
    return isinstance(value, list | tuple) and any(map(_is_strange, value))


class _Replacement:
    """The handler of this process while calls are under way. Each time it is a new one: a program that has put its own
    before it, meanwhile, keeps that.
    """

    def __init__(self) -> None:
        self._before = self._ours = codecs.lookup_error("strict")
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Begin without calls: the threads that made them are the parent's."""
        self._lock, self._calls = SYSTEM.lock(), 0
        self._put_back()

    def begin(self) -> None:
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._before = codecs.lookup_error("strict")
                self._ours = partial(_handled, self._before)
                codecs.register_error("strict", self._ours)

    def end(self) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                self._put_back()

    def _put_back(self) -> None:
        if codecs.lookup_error("strict") is self._ours:
            codecs.register_error("strict", self._before)


def _handled(before: Handler, failure: UnicodeError) -> tuple[str | bytes, int]:
    strange = _present.get()
    if strange is None or not isinstance(failure, UnicodeDecodeError):
        return before(failure)
    strange.met = True
    return _escape(failure)


_present: ContextVar[Strange | None] = ContextVar("latchwork_lenient", default=None)
_replacement = _Replacement()
