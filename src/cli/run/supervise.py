"""Run a program, and make sure that no process of it is left: when it ends, when it must end, and when this process is
killed.

A process of its own, the supervisor, starts the program, and ends it if this process has died; this process talks to it
over a socket.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ...coord.fencing import Lost
from ...errors import InvalidRequest, LatchworkError
from ...plain import shown
from ...seams import SYSTEM
from ..session import note
from .foreground import Foreground

LOST = 1
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LOOK_EVERY = 0.1
"""Seconds between two looks at whether the fence is lost."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that are passed on to the program; none of them ends this process before it."""
CHUNK = 65_536
PROGRAM = Path(__file__).with_name("supervisor.py")


def run_under(
    command: Sequence[str],
    lost: Lost,
    facts: Mapping[str, Any],
    more: Mapping[str, str],
    *,
    lease: float,
    grace: float = GRACE,
) -> int:
    """Run the command with the facts in its environment; return its exit code, or 1 if the fence was lost meanwhile.

    The environment has `LATCHWORK_<NAME>` for each fact, and `more`. Returns when no process of the command is left:
    processes that it has started and left behind are ended. SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on; SIGTERM
    is also sent when the fence is lost. Processes that are left `grace` seconds later are killed. If this process is
    killed, the supervisor does all this, within half the lease, so before another process gets the fence.

    Raises `CannotRun` if the command cannot be run.
    """
    if not command:
        raise InvalidRequest("no command to run: write it behind --, as in `latchwork lock run NAME -- ./job.sh`")
    variables = {f"LATCHWORK_{name.upper()}": str(value) for name, value in facts.items()}
    with Supervisor() as supervisor, Foreground() as foreground, _Signals() as signals:
        run = SupervisedRun(supervisor, grace, min(grace, lease / 2), lost.is_set, foreground, signals)
        return run.result(command, {**os.environ, **variables, **more})


class CannotRun(InvalidRequest):
    """A command that cannot be run. Its exit code is that of a shell: 127 where there is no such program, else 126."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def cannot_run(name: str, why: str, *, is_absent: bool) -> CannotRun:
    """Return the error for a command that cannot be run."""
    return CannotRun(f"cannot run {shown(name)}: {why}", exit_code=127 if is_absent else 126)


class Supervisor:
    """The process that runs commands for this process, one after the other. Entering starts it, leaving ends it."""

    def __enter__(self) -> Supervisor:
        return self.start()

    def start(self) -> Supervisor:
        """Start the process."""
        self._end, theirs = socket.socketpair()
        self._unread = b""
        # A signal to both processes must not end the supervisor before it blocks all signals itself.
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very Python, with a file of ours
                [sys.executable, "-I", "-S", str(PROGRAM), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        except OSError as failure:
            self._end.close()
            raise LatchworkError(f"cannot start {sys.executable!r} to run a command: {failure.strerror}") from None
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.wait()

    def leave(self) -> None:
        """Let it end, together with the command that it runs."""
        with suppress(OSError):  # it was killed
            self._end.shutdown(socket.SHUT_WR)  # a thread may still read from it

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()

    def fileno(self) -> int:
        """Return the descriptor that can be read when there is a message."""
        return self._end.fileno()

    def ask(self, descriptors: Sequence[int] = (), **asked: Any) -> None:
        """Send a request, with these open files. If the supervisor has died, `said` raises."""
        data = json.dumps(asked).encode() + b"\n"
        with suppress(OSError):
            sent = socket.send_fds(self._end, [data], descriptors) if descriptors else 0
            self._end.sendall(data[sent:])

    def messages(self) -> list[dict[str, Any]]:
        """Wait for messages of the supervisor and return them. Raises `EOFError` if it has died."""
        try:
            data = self._end.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Supervisors:
    """The supervisors of a process, one for each command that runs at a time, used again and again. Leaving the block
    ends the commands that still run.

    foreground: the terminal, if commands run in the main thread only.
    """

    def __init__(self, foreground: Foreground | None = None) -> None:
        self._foreground = foreground
        self._idle: list[Supervisor] = []
        self._all: list[Supervisor] = []

    def __enter__(self) -> Supervisors:
        return self

    def __exit__(self, *_: object) -> None:
        for supervisor in self._all:
            supervisor.leave()
        for supervisor in self._all:
            supervisor.wait()

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        data: bytes,
        stdout: int | None,
        lost: Callable[[], bool],
    ) -> int:
        """Return the exit code of a command that reads `data`, when nothing is left of it. From any thread.

        lost: whether its message is another consumer's, or may be: then it is ended.

        Raises `CannotRun` if it cannot be run.
        """
        try:
            supervisor = self._idle.pop()
        except IndexError:
            supervisor = Supervisor().start()
            self._all.append(supervisor)
        run = SupervisedRun(supervisor, lost=lost, foreground=self._foreground, what="the lease of the message")
        code = run.result(command, environment, data, stdout)
        self._idle.append(supervisor)
        return code


class SupervisedRun:
    """One command that a supervisor runs.

    grace: seconds between the signal that asks the command to end and SIGKILL.
    grace_alone: `grace` if this process has died.
    lost: whether the command must end.
    what: what is lost then, for people.
    foreground, signals: of the main thread, if it runs there.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        grace: float = GRACE,
        grace_alone: float = GRACE,
        lost: Callable[[], bool] | None = None,
        foreground: Foreground | None = None,
        signals: _Signals | None = None,
        what: str = "the fence",
    ) -> None:
        self._supervisor, self._grace, self._grace_alone = supervisor, grace, grace_alone
        self._lost, self._foreground, self._signals, self._what = lost, foreground, signals, what
        self._group = 0
        self._is_lost = False
        self._feed = b""
        self._stdin: int | None = None
        self._status: int | None = None

    def result(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        data: bytes | None = None,
        stdout: int | None = None,
    ) -> int:
        """Run the command; return its exit code when no process of it is left; 128 more than the signal that ended it.

        data: its stdin; None = the stdin of this process.
        stdout: where it prints.
        """
        with ExitStack() as opened:
            descriptors = []
            if data is not None:
                reading, self._stdin = os.pipe()
                opened.callback(self._close_stdin)
                descriptors, self._feed = [reading], data
                os.set_blocking(self._stdin, False)
            self._supervisor.ask(
                descriptors,
                run=list(command),
                environment=dict(environment),
                stdout=stdout,
                fed=data is not None,
                grace=self._grace,
                grace_alone=self._grace_alone,
                foreground=self._foreground is not None and self._foreground.is_offered,
                mask=sorted(self._supervisor.mask),
            )
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                self._watch(command[0])
            except BaseException as failure:  # such as a Ctrl-C; a second one leaves the rest to the supervisor
                self._end(signal.SIGINT if isinstance(failure, KeyboardInterrupt) else signal.SIGTERM)
                self._watch(command[0])
                raise
        status = self._status or 0
        if self._foreground is not None:
            self._foreground.ended(status)
        return LOST if self._is_lost else status if status >= 0 else 128 - status

    def _watch(self, name: str) -> None:
        while self._status is None:
            self._handle_signals()
            if self._lost is not None and not self._is_lost and self._group and self._lost():
                self._is_lost = True
                note(f"{self._what} was lost; ending the command")
                self._end(signal.SIGTERM)
            sinks = [] if self._stdin is None else [self._stdin]
            pause = None if self._lost is None and self._signals is None else LOOK_EVERY
            readable, taking, _ = select.select([self._supervisor], sinks, [], pause)
            if taking:
                self._feed_some()
            if readable:
                try:
                    for message in self._supervisor.messages():
                        self._handle(message, name)
                except EOFError:
                    self._supervisor_has_gone()

    def _handle(self, message: dict[str, Any], name: str) -> None:
        if "failed" in message:
            self._status = LOST
            raise cannot_run(name, message["failed"], is_absent=message["is_absent"])
        if "began" in message:
            self._group = message["began"]
            if self._foreground is not None:
                self._foreground.began(self._group)
        elif "stopped" in message:
            self._stopped(message["stopped"])
        elif "left" in message and not message["left"]:
            note("the command has ended; ending the processes that it left running")
        elif "ended" in message:
            self._status = message["ended"]

    def _stopped(self, number: int) -> None:
        if number == signal.SIGSTOP:  # another process wants it stopped
            return
        if self._foreground is None or not self._foreground.stopped(number):
            note("the command reads from the terminal, which it cannot have; ending the command")
            self._end(signal.SIGTERM)
        elif self._lost is None or not self._lost():  # otherwise it is ended before it continues
            self._supervisor.ask(signal=signal.SIGCONT)

    def _handle_signals(self) -> None:
        for number in self._signals.taken() if self._signals is not None and self._group else ():
            if number == signal.SIGTSTP:
                self._supervisor.ask(signal=number)
            else:
                self._end(number)

    def _end(self, number: int) -> None:
        self._supervisor.ask(end=number, grace=self._grace)

    def _supervisor_has_gone(self) -> None:
        """Kill the rest of the command's group after the supervisor was killed: the system has killed the command with
        it.
        """
        self._status = LOST
        seams, left = SYSTEM, self._grace
        with suppress(OSError):
            while self._group and left > 0:
                os.killpg(self._group, signal.SIGKILL)
                seams.sleep(LOOK_EVERY)
                left -= LOOK_EVERY
        raise LatchworkError("the process that watches the command was killed, and the command with it")

    # ---- its stdin

    def _feed_some(self) -> None:
        try:
            self._feed = self._feed[os.write(self._stdin or 0, self._feed[:CHUNK]) :]
        except OSError:  # the command has closed its stdin
            self._feed = b""
        if not self._feed:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None


class _Signals:
    """A context that keeps the signals for the command, in the main thread; ignored ones stay ignored."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (*ENDING, signal.SIGTSTP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda came, _: self._came.append(came))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def taken(self) -> list[int]:
        """Return the signals that have come since this was asked last."""
        came = self._came[:]
        del self._came[: len(came)]
        return came
