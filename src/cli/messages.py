"""`latchwork queue publish|peek|consume|redrive`: messages into a queue, out of it, and back again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..errors import InvalidRequest, LatchworkError
from ..queue import Consumer, Delivery, Message, ShardedQueue
from .jsontext import from_json, to_json
from .options import Client, Farm
from .queue import Name, queue_of
from .session import Session, note

SIDES = {"main": lambda queue: queue, "sideline": lambda queue: queue.sideline, "parked": lambda queue: queue.parked}
STDERR = 2
"""Where a command's output goes, so that stdout has the one JSON document alone."""


def peek(
    context: typer.Context,
    name: Name,
    client: Client,
    limit: Annotated[int, typer.Option(help="at most so many")] = 10,
    side: Annotated[str, typer.Option(help="main, sideline or parked")] = "main",
    farm: Farm = None,
) -> None:
    """Look at messages; nothing changes.

    Example: latchwork queue peek orders --client shop --side parked
    """
    session: Session = context.obj
    if side not in SIDES:
        raise InvalidRequest(f"side is {side!r}; it must be main, sideline or parked")
    view = SIDES[side](queue_of(session, name, client, farm))
    session.table([_row(message, json_value=session.json) for message in view.peek(limit)], empty="no messages")


def publish(
    context: typer.Context,
    name: Name,
    client: Client,
    payload: Annotated[list[str] | None, typer.Argument(help="JSON, one message each; default: lines of stdin")] = None,
    key: Annotated[str | None, typer.Option(help="messages of one key go to one shard")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; repeat for each")] = None,
    farm: Farm = None,
) -> None:
    """Publish messages; prints their ids.

    Lines of stdin end at a newline and at nothing else, and empty ones are left out. They are JSON in UTF-8; a queue of
    bytes takes them as they are.

    Example: latchwork queue publish orders '{"order": 7}' --client shop --key customer-42
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    headers = dict(_header(pair) for pair in header or [])
    ids = queue.publish_many([_payload(given, queue) for given in payload or _lines()], key=key, headers=headers)
    session.say("\n".join(ids), published=ids)


def consume(
    context: typer.Context,
    name: Name,
    client: Client,
    command: Annotated[
        list[str] | None, typer.Argument(help="run for each message, payload on stdin, behind --")
    ] = None,
    limit: Annotated[int, typer.Option("--max", min=1, help="stop after so many")] = 10,
    timeout: Annotated[float, typer.Option(help="seconds to wait for a message")] = 1,
    follow: Annotated[
        bool, typer.Option("--follow", help="go on until SIGTERM or Ctrl-C, with the consumers asked for")
    ] = False,
    farm: Farm = None,
) -> None:
    """Take messages: print and acknowledge them, or run a command for each, which acknowledges by exit code 0.

    With --json they are printed together before they are acknowledged; with --follow each in a line; what a command
    prints goes to stderr then. Where the command fails the message goes into the sideline, and the exit code is 1, but
    for --follow. What was taken when Ctrl-C or an error comes goes there too; --follow ends where it cannot print or
    run the command any more. A paused queue gives no messages, which is said on stderr.

    Example: latchwork queue consume orders --client shop --follow -- ./handle-order.sh
    """
    session: Session = context.obj
    _check_command(command)
    queue = queue_of(session, name, client, farm)
    if not queue.concurrency:
        note(f"the queue {name!r} is paused and gives no messages: latchwork queue resume {name}")
    work = _Work(command, session)
    if follow:
        raise typer.Exit(0 if _followed(queue, work) else 1)
    if session.json and not command:
        _print_together(session, queue, limit, timeout)
    else:
        outcomes = [_settled(delivery, work) for delivery in _received(queue, limit, timeout)]
        if session.json:
            session.table(outcomes)
        _tell_failed(outcomes)


def redrive(
    context: typer.Context,
    name: Name,
    client: Client,
    limit: Annotated[int, typer.Option(help="at most so many")] = 100,
    reason: Annotated[str | None, typer.Option(help="only those parked for this reason")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say which")] = False,
    farm: Farm = None,
) -> None:
    """Bring parked messages back, to start again with no attempts.

    Example: latchwork queue redrive orders --client shop --reason exhausted --dry-run
    """
    session: Session = context.obj
    found = queue_of(session, name, client, farm).redrive(limit, reason=reason, dry_run=dry_run)
    session.table([_row(message, json_value=session.json) for message in found], empty="nothing to bring back")


def add_to(app: typer.Typer) -> None:
    """Make these commands of the group `queue`."""
    for command in (publish, peek, consume, redrive):
        app.command()(command)


def _header(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"--header is {pair!r}; write name=value")
    return name, value


def _lines() -> list[bytes]:
    return [line for line in sys.stdin.buffer.read().split(b"\n") if line.rstrip(b"\r")]


def _payload(given: str | bytes, queue: ShardedQueue) -> Any:
    if queue.config.codec == "bytes":
        return os.fsencode(given)
    text = given if isinstance(given, str) else _decoded(given)
    try:
        return from_json(text)
    except InvalidRequest:
        raise
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not JSON; quote a string twice: '\"text\"'") from None


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as failure:
        raise InvalidRequest(
            f"the line {line[:40]!r} is not UTF-8 at byte {failure.start}: convert it first, or use a queue of bytes"
        ) from None


def _received(queue: ShardedQueue, limit: int, timeout: float) -> Iterator[Delivery]:
    """Up to `limit` messages, one at a time, each when the one before it has been settled."""
    for _ in range(limit):
        found = queue.receive(1, timeout=timeout)
        if not found:
            return
        yield found[0]


def _print_together(session: Session, queue: ShardedQueue, limit: int, timeout: float) -> None:
    found: list[Delivery] = []
    try:
        while len(found) < limit and (more := queue.receive(min(limit - len(found), 1_000), timeout=timeout)):
            found += more
        session.table([_facts(delivery) for delivery in found])
    except BaseException as failure:
        _give_back(found, failure)
        raise
    queue.ack_many(found)


def _settled(delivery: Delivery, work: _Work) -> dict[str, Any]:
    try:
        done = work.one(delivery)
    except BaseException as failure:
        _give_back([delivery], failure)
        raise
    delivery.ack() if done else delivery.nack()
    return {"message_id": delivery.message_id, "acked": done}


def _give_back(deliveries: Sequence[Delivery], failure: BaseException) -> None:
    """Into the sideline, so that nothing waits for a sweep; what does not get there is swept all the same."""
    for delivery in deliveries:
        with suppress(LatchworkError):
            delivery.nack("exception", error=f"{type(failure).__name__}: {failure}")


def _tell_failed(outcomes: Sequence[dict[str, Any]]) -> None:
    """Says how many are in the sideline now, and exits with 1 if any is."""
    failed = sum(not outcome["acked"] for outcome in outcomes)
    if failed:
        note(f"{failed} of {len(outcomes)} failed: in the sideline")
        raise typer.Exit(1)


def _check_command(command: list[str] | None) -> None:
    """A command that cannot be run would fail every message: it is refused before the first one is taken."""
    if command and shutil.which(command[0]) is None:
        raise InvalidRequest(f"cannot run {command[0]!r}: there is no such program, or it may not be run")


def _followed(queue: ShardedQueue, work: _Work) -> bool:
    """What `Consumer.run` returns. It ends where no message can be printed or given to the command any more.

    Otherwise every message that comes would fail, and be in the sideline.
    """
    failures: list[Exception] = []

    def handle(given: Delivery | list[Delivery]) -> bool | list[bool]:
        try:
            return work.each(given)
        except (OSError, LatchworkError) as failure:
            failures.append(failure)
            if len(failures) == 1:
                os.kill(os.getpid(), signal.SIGTERM)  # a handler may not stop its consumer; a second signal would force
            raise

    done = Consumer(queue, handle).run()
    if failures:
        raise failures[0]
    return done


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done with each message: it is printed, or a command is run for it."""

    command: list[str] | None
    session: Session

    def each(self, given: Delivery | list[Delivery]) -> bool | list[bool]:
        """What a consumer's handler answers, for one message or for a batch."""
        return [self.one(delivery) for delivery in given] if isinstance(given, list) else self.one(given)

    def one(self, delivery: Delivery) -> bool:
        """Whether the message is done with. Raises `OSError` or `LatchworkError` where none can be handled."""
        payload = delivery.payload
        data = payload if isinstance(payload, bytes) else to_json(payload).encode()
        if self.command:
            return self._run(self.command, data, delivery)
        line = to_json(_facts(delivery)) if self.session.json else data.decode(errors="backslashreplace")
        print(line, flush=True)  # noqa: T201 - the command's output
        return True

    def _run(self, command: list[str], data: bytes, delivery: Delivery) -> bool:
        facts = {"LATCHWORK_MESSAGE_ID": delivery.message_id, "LATCHWORK_ATTEMPTS": str(delivery.attempts)}
        environment = os.environ | self.session.environment | facts
        stdout = STDERR if self.session.json else None
        try:
            done = subprocess.run(command, input=data, env=environment, stdout=stdout, check=False)  # noqa: S603 - asked for
        except OSError as failure:
            raise LatchworkError(f"cannot run {command[0]!r}: {failure.strerror}") from None
        return done.returncode == 0


def _facts(delivery: Delivery) -> dict[str, Any]:
    payload = delivery.payload
    return {
        "message_id": delivery.message_id,
        "attempts": delivery.attempts,
        "enqueued_at": delivery.enqueued_at.isoformat(timespec="seconds"),
        "headers": dict(delivery.headers),
        "payload": payload.hex() if isinstance(payload, bytes) else payload,
    }


def _row(message: Message, *, json_value: bool) -> dict[str, Any]:
    """json_value: the payload as it is, for a JSON document; else as text."""
    payload = message.raw if message.unreadable else message.payload
    if isinstance(payload, bytes):
        payload = payload.hex()
    elif not json_value and not message.unreadable:
        payload = to_json(payload)
    return {
        "shard": message.shard,
        "pointer": message.pointer,
        "message_id": message.message_id,
        "attempts": message.attempts,
        "enqueued_at": message.enqueued_at.isoformat(timespec="seconds"),
        "reason": message.reason,
        "last_error": message.last_error,
        "payload": payload,
    }
