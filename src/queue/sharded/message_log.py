"""The lines in the log about single messages: a handler has failed with one, one is parked.

They are written by the logger `latchwork.worker`, as the lines of a worker's life are, never with a payload. A text of
an exception is its author's: if it quotes the payload, so does the log.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ...background import LimitedLog
from ...errors import LatchworkError
from ...logs import Log
from ...plain import counted
from ...seams import Seams
from .envelope import Envelope

log = Log("latchwork.worker")

MOST = 5
"""Lines of one kind a minute; the others are counted."""


class MessageLog:
    """The lines about the messages of one queue. Safe to share between threads."""

    def __init__(self, seams: Seams, queue: str) -> None:
        self._queue, self._limited = queue, LimitedLog(seams, log, MOST)

    def failed(
        self, first: Envelope, others: int, verb: str, why: str = "", *, failure: BaseException | None = None
    ) -> None:
        """Log, at WARNING, that the handler failed with a message, and with so many others of its batch.

        verb: what the handler did, as `raised at`.
        why: the rest of the line.
        failure: logged with its traceback. Its type, and the place where it was raised, are the kind of the line.
        """
        handler, more = f"the handler of {self._queue!r}", f" and {counted(others, 'other')}" if others else ""
        self._limited.log(
            f"{handler} {verb.removesuffix(' at')}{_raised(failure)}",
            logging.WARNING,
            f"{handler} {verb} message {first.msg_id}{more}, attempt {first.attempts}{f': {why}' if why else ''}",
            failure=failure,
            extra=self._extra(first),
        )

    def parked(self, envelope: Envelope, reason: str) -> None:
        """Log, at ERROR, that a message is parked: it does not come again by itself."""
        error = f", last error: {envelope.last_error}" if envelope.last_error else ""
        self._limited.log(
            f"messages of {self._queue!r} are parked ({reason})",
            logging.ERROR,
            f"message {envelope.msg_id} of {self._queue!r} is parked ({reason}, attempts: {envelope.attempts}"
            f"{error}); `latchwork queue redrive` brings it back",
            extra=self._extra(envelope),
        )

    def not_moved(self, envelope: Envelope, reason: str, failure: LatchworkError) -> None:
        """Log, at WARNING, that a message which is not handed out could not be moved, so it stays in its slot."""
        self._limited.log(
            f"messages of {self._queue!r} could not be moved ({reason})",
            logging.WARNING,
            f"message {envelope.msg_id} of {self._queue!r} ({reason}) could not be moved, and comes again later: "
            f"{failure}",
            extra=self._extra(envelope) | {"code": failure.code},
        )

    def _extra(self, envelope: Envelope) -> dict[str, object]:
        return {"queue": self._queue, "message_id": envelope.msg_id, "attempt": envelope.attempts}

    def flush(self, *, now: bool = False) -> None:
        """Log how many lines were left out in minutes that are over; `now`: in all."""
        self._limited.flush(now=now)


def _raised(failure: BaseException | None) -> str:
    """Return which exception was raised, and where, as ` ValueError (jobs.py, line 12)`."""
    if failure is None:
        return ""
    trace, place = failure.__traceback__, ""
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f" {type(failure).__name__}{place}"
