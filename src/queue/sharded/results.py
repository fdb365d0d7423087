"""What a handler returned: kept in the slot of its message, and handed to whoever waits for it (docs/protocols P31)."""

from __future__ import annotations

from typing import Any

import msgspec

from ... import lossless
from ...deadline import Deadline
from ...errors import (
    Cancelled,
    Expired,
    HandlerFailed,
    InvalidRequest,
    LatchworkError,
    NotFound,
    Unreadable,
    WaitTimeout,
)
from ...inputs import checked_timeout
from ...plain import one_line, shown
from ...retry import Poll, may_pass, outlive
from .config import QueueConfig
from .envelope import Codec
from .handles import QueueHandle
from .status import State, Status

MAX_RESULT = 65_536
"""Characters of a result as JSON, or its bytes, at most: the record of a message always has room for it."""
LOOK = Poll(low=0.02, high=1.0, factor=1.5)
"""The pauses between two looks for a result: short ones for what is soon there, then one a second."""
NOTHING = ["null"]
"""The result of a message that was acknowledged with none, as it is stored."""
WITH_ITS_PROCESS = "the process of its handler died before the result was stored"
_JSON, _BYTES = Codec(), Codec("bytes")


def kept(value: Any, codec: Codec) -> list[Any]:
    """Return a result as it is stored: JSON text in a list; in a queue of bytes also bytes as they are.

    Raises `InvalidRequest` for one that cannot be kept.
    """
    try:
        value = value.model_dump(mode="json") if hasattr(value, "model_dump") else value  # a model of pydantic
    except Exception as failure:  # noqa: BLE001 - it is code of the user's
        why = f"{type(failure).__name__}: {one_line(str(failure))}"
        raise InvalidRequest(f"the result cannot be kept: its model_dump raised {why}") from None
    is_bytes = codec.name == "bytes" and isinstance(value, bytes | bytearray | memoryview)
    data = bytes(value) if is_bytes else _json(value)
    if len(data) > MAX_RESULT:
        raise InvalidRequest(f"the result has {len(data)} characters, at most {MAX_RESULT} are kept: return its place")
    return [data]


def _json(value: Any) -> str:
    """Return a result as JSON text. Raises `InvalidRequest`."""
    try:
        encoded = lossless.encode(value)
        lossless.check(value, encoded)
    except InvalidRequest as failure:
        raise InvalidRequest(f"the result cannot be kept: {one_line(str(failure))}") from None
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as failure:
        raise InvalidRequest(
            f"the result cannot be kept, as it is not JSON: {one_line(str(failure))}; return text, numbers, lists and "
            "maps, or the place where it is"
        ) from None
    return encoded.decode()


def check_keeps_results(queue: QueueHandle) -> None:
    """Raise `InvalidRequest` if the queue keeps no results."""
    if queue.config.results is None:
        raise InvalidRequest(
            f"{shown(queue.name)} keeps no results: create it with QueueConfig(results=timedelta(...))"
        )


def result(queue: QueueHandle, message_id: str, timeout: float | None) -> Any:
    """Return what the handler of a message returned, as `ShardedQueue.result` says."""
    check_keeps_results(queue)
    limit, seams, tries = checked_timeout(timeout), queue.store.seams, 0
    seams.may_wait("ShardedQueue.result", limit)
    with Deadline(seams, limit) as deadline:
        while True:
            # 1. Look where the message is.
            found = outlive(seams, deadline, lambda: queue.status(message_id), passing=may_pass)
            if found.kept is not None:
                return opened(found.kept, message_id)
            # 2. It has ended otherwise, or nobody tries it again.
            if not may_come(found, queue.config):
                raise no_result(found, message_id)
            # 3. Wait, and look again.
            left, tries = deadline.left(), tries + 1
            if left == 0:
                raise too_late(queue, found, message_id, at_work=is_at_work(queue, found))
            pause = LOOK.pause(tries, seams)
            seams.sleep(pause if left is None else min(pause, left))


_COMES = (State.READY, State.RUNNING, State.RETRYING, State.DELAYED)


def may_come(found: Status, config: QueueConfig) -> bool:
    """Whether a message that has no result yet can have one without anybody's help."""
    return found.state in _COMES and (found.state is not State.RETRYING or comes_back(config))


def comes_back(config: QueueConfig) -> bool:
    """Whether a message that has failed comes back by itself, unless it had its last attempt."""
    return config.retries is not None or config.shovel is not None


def opened(stored: object, message_id: str) -> Any:
    """Return a result that was stored by `kept`. Raises `Unreadable` if it could not be kept, or is damaged."""
    if isinstance(stored, str):
        raise Unreadable(f"message {shown(message_id)} is done, and its result is not kept: {one_line(stored)}")
    data = stored[0] if isinstance(stored, list) and len(stored) == 1 else None
    if isinstance(data, str | bytes):
        return (_BYTES if isinstance(data, bytes) else _JSON).decode(data)
    raise Unreadable(f"the stored result of message {shown(message_id)} is damaged")


def no_result(found: Status, message_id: str) -> LatchworkError:
    """Return why a message has no result, and gets none unless somebody brings it back."""
    name = f"message {shown(message_id)}"
    if found.state in (State.PARKED, State.RETRYING):
        return HandlerFailed(
            f"{name} has failed, and is not tried again unless somebody brings it back: {found.error}",
            reason=found.reason, error=found.error,
        )  # fmt: skip
    if found.state is State.GONE:
        return Cancelled(f"{name} has no result: it was cancelled, discarded or moved")
    if found.state is State.EXPIRED:
        return Expired(f"{name} has no result: its life ended before anybody took it")
    if found.state is State.DONE:
        return NotFound(f"{name} is done, and its result is not there: it was kept for its time, or not by its worker")
    return NotFound(f"{name} is not known: {found.hint or 'there was none, or its time is over'}")


def is_at_work(queue: QueueHandle, found: Status) -> bool:
    """Whether anybody works on the queue of a message that waits. One call; none for a message that does not wait."""
    return found.state is not State.READY or not all(one.is_silent for one in queue.workers())


def too_late(queue: QueueHandle, found: Status, message_id: str, *, at_work: bool) -> WaitTimeout:
    """Return the error of a wait that is over."""
    why = f"it is {found.state.value}" if at_work else f"no worker of {shown(queue.name)} is at work"
    return WaitTimeout(f"message {shown(message_id)} has no result yet: {why}", state=found.state.value)
