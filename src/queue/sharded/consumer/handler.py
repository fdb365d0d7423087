"""The handler of a consumer: how it is checked, and what its answer says of a message."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Collection, Coroutine, Generator
from typing import Any

from ....errors import InvalidMessageHandler, InvalidRequest
from ....inputs import in_a_call, is_async
from ....plain import shown
from ..envelope import Reason

Verdict = tuple[Reason, str | None] | None
"""The outcome of a message: None = acknowledged, else why it failed."""


def check_handler(handler: Any) -> None:
    """Raise `InvalidMessageHandler` for an object that cannot be called, and for a coroutine or generator function."""
    check_called(handler, "a function")
    if is_async(handler):
        raise InvalidMessageHandler(
            "the handler is an async function, and nothing would run what it returns: use the Consumer or the Worker "
            "of latchwork.aio"
        )


def check_called(handler: Any, wanted: str) -> None:
    """Raise `InvalidMessageHandler` for an object that cannot be called, and for a generator function, whose call runs
    nothing.
    """
    if not callable(handler):
        raise InvalidMessageHandler(f"the handler is a {type(handler).__name__}; give {wanted} of one argument")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in in_a_call(handler)):
        raise InvalidMessageHandler(
            "the handler has a `yield`, so a call of it makes a generator and runs nothing: return instead"
        )


def judged(answer: Any, *, keeps: bool) -> Verdict:
    """Return what an answer of the handler says of its message. It is acknowledged for True and None; `keeps`: where
    results are kept, for all but False.
    """
    if answer is False:
        return Reason.REJECTED, None
    ran = not isinstance(answer, Coroutine | Generator | AsyncGenerator)  # its call ran nothing yet
    if answer is None or answer is True or (keeps and ran):
        return None
    if inspect.iscoroutine(answer):
        answer.close()  # Python warns about a coroutine that is never awaited
    kind = type(answer).__name__
    return Reason.REJECTED, f"the handler returned a {kind}; return True or None to acknowledge, False to reject"


def text_of(failure: BaseException) -> str:
    """Return the text of the exception. Its `__str__` is the handler's code too, and may fail."""
    try:
        return str(failure)
    except BaseException as trouble:  # noqa: BLE001 - as what a handler raises
        return f"its text cannot be shown: that raised {type(trouble).__name__}"


def exception_types(ignorable: Any) -> tuple[type[BaseException], ...]:
    """Return the exception types that were given, one or many. Raises `InvalidRequest`."""
    kinds = (ignorable,) if isinstance(ignorable, type) else ignorable
    if (
        isinstance(kinds, str)
        or not isinstance(kinds, Collection)
        or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    ):
        raise InvalidRequest(f"ignorable is {shown(ignorable)}; it must be one or several exception types")
    return tuple(kinds)
