"""`latchwork queue consume`: take messages, to print them or to run a command for each."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ...background import Background, FailureLog
from ...deadline import Deadline
from ...errors import Interrupted, InvalidRequest, LatchworkError, LeaseLost
from ...inputs import checked_timeout
from ...logs import Log
from ...plain import one_line
from ...queue import Consumer, Delivery, ShardedQueue
from ...queue.sharded.consumer.settlements import EXTENSIONS, extend
from ...retry import may_pass, outlive
from ..jsontext import to_json
from ..options import Client, Farm
from ..run.foreground import Foreground
from ..run.supervise import Supervisors, cannot_run
from ..session import Session, note
from .arguments import Name, as_named, queue_of

log = Log(__name__)

HEED = 1.0
"""Seconds between two looks at whether SIGTERM has come, while there is no message."""
STDERR = 2
"""The output of a command that is run, so that stdout has only the one JSON document."""


def consume(
    context: typer.Context,
    name: Name,
    client: Client,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="the command to run for each message, behind --; it reads the payload from stdin"),
    ] = None,
    limit: Annotated[int, typer.Option("--max", min=1, help="stop after this number of messages")] = 10,
    timeout: Annotated[float, typer.Option(help="seconds to wait for a message")] = 1,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="go on until SIGTERM or Ctrl-C, with the worker threads that the queue asks for"),
    ] = False,
    farm: Farm = None,
) -> None:
    """Take messages, and print them or run a command for each. A message is acknowledged once it is printed, or its
    command has exited with 0.

    If the command fails, the queue's settings say when the message comes again, and the exit code is 1 (except with
    --follow). Processes that the command has started and left running are ended before its message is acknowledged or
    fails by its exit code; until then, for up to ten sweep durations (200 minutes), no sweep takes the message away.

    SIGTERM: the messages that were taken are finished, and no more are taken. Ctrl-C, or an error: the messages go back
    to the queue, and this attempt does not count. With --follow, SIGTERM, SIGHUP (the terminal was closed) and the
    first Ctrl-C all let the messages finish; a second SIGTERM or Ctrl-C ends the command. --follow also ends if it
    cannot print or run the command any more. A command that runs longer than the queue's handler_timeout is ended with
    SIGTERM, and SIGKILL 10 s later; its message has failed.

    With --json the messages are printed together, before they are acknowledged; with --json --follow, one a line. The
    output of a command then goes to stderr. A paused queue gives no messages; stderr says so.

    Example: latchwork queue consume orders --client shop --follow -- ./handle-order.sh
    """
    session: Session = context.obj
    _check_command(command)
    checked_timeout(timeout)
    queue = queue_of(session, name, client, farm)
    if not queue.concurrency:
        note(f"the queue {name!r} is paused and gives no messages: latchwork queue resume {as_named(queue)}")
    with ExitStack() as entered:
        if follow:
            work = _Work(command, session, entered.enter_context(Supervisors()))
            raise typer.Exit(0 if _followed(queue, work) else 1)
        terminal = entered.enter_context(Foreground(at_once=False))
        work = _Work(command, session, entered.enter_context(Supervisors(terminal)))
        in_hand = entered.enter_context(_InHand(queue))
        taking = _Taking(queue, limit, timeout, entered.enter_context(_Drained()), in_hand)
        if session.json and not command:
            _print_together(session, taking)
        else:
            _work_one_by_one(session, taking, work)


class _Drained:
    """A context that notes whether SIGTERM has come. A second SIGTERM does what Ctrl-C does, and so does SIGHUP."""

    def __init__(self) -> None:
        self._is_set = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Drained:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self._is_set

    def _signalled(self, number: int, _frame: Any) -> None:
        if self._is_set or number == signal.SIGHUP:
            raise KeyboardInterrupt
        self._is_set = True


@dataclass(slots=True)
class _Taking:
    """A consumer of up to `limit` messages, each within `timeout` seconds, until it is asked to drain."""

    queue: ShardedQueue
    limit: int
    timeout: float
    drained: _Drained
    in_hand: _InHand

    def some(self, most: int) -> list[Delivery]:
        """Return the next messages, up to a number; none if there are none in time, or enough were taken. An
        unavailable store is asked again until then.
        """
        seams, most = self.queue.store.seams, min(most, self.limit)
        with Deadline(seams, self.timeout) as deadline:
            found = outlive(seams, deadline, lambda: self._next(most, deadline.left() or 0.0), passing=may_pass)
        self.limit -= len(found)
        self.in_hand.deliveries = [*self.in_hand.deliveries, *found]
        return found

    def _next(self, most: int, seconds: float) -> list[Delivery]:
        """Return the next messages; none after that time, or once it is to drain. Raises the store's first error."""
        seams = self.queue.store.seams
        end = seams.monotonic() + seconds
        while most and not self.drained:
            look = min(end, seams.monotonic() + HEED)
            with Deadline(seams, max(0.0, look - seams.monotonic())):  # a server that hangs must not delay the drain
                found = self.queue.await_messages(most, look, None)
            if found or look == end:
                return found
        return []


class _InHand:
    """A context in which messages that were taken and not settled yet are extended, as by a consumer: a sweep would
    bring them to another one while the command runs, or while more messages are waited for.
    """

    def __init__(self, queue: ShardedQueue) -> None:
        self.deliveries: list[Delivery] = []
        self._pause = queue.config.sweep_duration.total_seconds() / EXTENSIONS
        self._name, self._failure_log = queue.name, FailureLog(queue.store.seams, log)
        self._background = Background(queue.store.seams, self._keep, f"{queue.name}-in-hand")

    def __enter__(self) -> _InHand:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which are for the main thread
        try:
            self._background.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self

    def __exit__(self, *_: object) -> None:
        self._background.stop(HEED)

    def _keep(self) -> None:
        while not self._background.stopping.wait(self._pause):
            try:
                if self.deliveries:
                    extend(self.deliveries)
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                self._failure_log.record(failure, f"the messages in hand of {self._name} could not be extended")

    def settle(self) -> None:
        """Extend none any more: all are settled now."""
        self.deliveries = []


def _print_together(session: Session, taking: _Taking) -> None:
    found: list[Delivery] = []
    try:
        while True:
            more = taking.some(1_000)
            if not more:
                break
            found += more
        session.table([_facts(delivery) for delivery in found])
    except BaseException:  # no message's fault; the sweep finds what cannot be given back
        taking.in_hand.settle()
        taking.queue.give_back(found)
        raise
    taking.in_hand.settle()
    taking.queue.ack_many(found)


def _work_one_by_one(session: Session, taking: _Taking, work: _Work) -> None:
    """Take each message when the one before it has been settled."""
    outcomes: list[dict[str, Any]] = []
    while more := taking.some(1):
        outcomes += (_settled(taking, delivery, work) for delivery in more)
    if session.json:
        session.table(outcomes)
    if failed := sum(not outcome["acked"] for outcome in outcomes):
        note(f"{failed} of {len(outcomes)} failed: the queue's settings say whether they come again or are parked")
        raise typer.Exit(1)


def _settled(taking: _Taking, delivery: Delivery, work: _Work) -> dict[str, Any]:
    in_hand = taking.in_hand
    try:
        done = work.one(delivery)
    except BaseException:
        in_hand.settle()
        taking.queue.give_back([delivery])
        raise
    in_hand.settle()
    delivery.ack() if done else delivery.nack()
    return {"message_id": delivery.message_id, "acked": done}


def _check_command(command: list[str] | None) -> None:
    """Refuse a command that cannot be run before the first message is taken: it would fail every message."""
    if command and shutil.which(command[0]) is None:
        is_absent = not ("/" in command[0] and Path(command[0]).exists())
        why = "there is no such program" if is_absent else "it may not be run"
        raise cannot_run(command[0], why, is_absent=is_absent)


def _followed(queue: ShardedQueue, work: _Work) -> bool:
    """Run a consumer; return what `Consumer.run` returns. It ends if messages cannot be printed or given to the command
    any more: that is no message's fault, so they go back to the queue and no attempt is counted.
    """
    failures: list[Exception] = []

    def handle(given: Delivery | list[Delivery]) -> bool | list[bool]:
        if not failures:
            try:
                return work.each(given)
            except (OSError, LatchworkError) as failure:
                failures.append(failure)
                if len(failures) == 1:  # a handler may not stop its consumer; a second signal would force
                    os.kill(os.getpid(), signal.SIGTERM)
        raise Interrupted(f"no message can be handled any more: {failures[0]}", cut=True)

    done = Consumer(queue, handle, grace=queue.config.handler_timeout.total_seconds()).run()  # what began is finished
    if failures:
        raise failures[0]
    return done


@dataclass(frozen=True, slots=True)
class _Work:
    """The handling of each message: it is printed, or a command is run for it."""

    command: list[str] | None
    session: Session
    supervisors: Supervisors

    def each(self, given: Delivery | list[Delivery]) -> bool | list[bool]:
        """Handle one message or a batch; return the result of a consumer's handler."""
        return [self.one(delivery) for delivery in given] if isinstance(given, list) else self.one(given)

    def one(self, delivery: Delivery) -> bool:
        """Whether the message is done with. Raises `OSError` or `LatchworkError` if none can be handled."""
        payload = delivery.payload
        data = payload if isinstance(payload, bytes) else to_json(payload).encode()
        if self.command:
            return self._run(self.command, data, delivery)
        line = to_json(_facts(delivery)) if self.session.json else data.decode(errors="backslashreplace")
        if sys.stdout.isatty():
            line = one_line(line)
        print(line, flush=True)  # noqa: T201 - the command's output
        return True

    def _run(self, command: list[str], data: bytes, delivery: Delivery) -> bool:
        facts = {"LATCHWORK_MESSAGE_ID": delivery.message_id, "LATCHWORK_ATTEMPTS": str(delivery.attempts)}
        environment = os.environ | self.session.environment | facts
        stdout = STDERR if self.session.json else None
        try:
            return self.supervisors.run(command, environment, data, stdout, partial(_is_lost, delivery)) == 0
        except InvalidRequest as failure:  # the queue existed at the start, so this is no usage error
            raise LatchworkError(str(failure)) from None


def _is_lost(delivery: Delivery) -> bool:
    """Whether a message was given up, after the handler timeout, or a sweep has taken it: it comes again. No call."""
    return delivery.stop is not None and isinstance(delivery.stop(), LeaseLost)


def _facts(delivery: Delivery) -> dict[str, Any]:
    payload = delivery.payload
    return {
        "message_id": delivery.message_id,
        "attempts": delivery.attempts,
        "enqueued_at": delivery.enqueued_at.isoformat(timespec="seconds"),
        "headers": dict(delivery.headers),
        "payload": payload.hex() if isinstance(payload, bytes) else payload,
    }
