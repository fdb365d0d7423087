"""Run a program, and see to it that nothing of it is left: when it ends, when it has to, and when we are killed.

The program is started by a process of its own, the supervisor, which ends what there is of it when this process has
gone; all else is asked of it over a socket.
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from ..errors import InvalidRequest, LatchworkError
from ..plain import shown
from ..seams import SYSTEM
from .foreground import Foreground
from .session import note

LOST = 1
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LOOK_EVERY = 0.1
"""Seconds between two looks at whether the fence is lost."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a program that runs is told when this process is; none of them ends this process before it."""
CHUNK = 65_536
PROGRAM = Path(__file__).with_name("supervisor.py")


class Loss(Protocol):
    """What tells that a fence is lost."""

    def is_set(self) -> bool: ...


def run_under(
    command: Sequence[str],
    lost: Loss,
    facts: Mapping[str, Any],
    more: Mapping[str, str],
    *,
    lease: float,
    grace: float = GRACE,
) -> int:
    """Run the command with the facts in its environment; its exit code, or 1 where the fence was lost meanwhile.

    The environment has `LATCHWORK_<NAME>` for each fact, and `more`. Returns when nothing is left of the command: what
    it has started and left behind is ended. SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on; so is SIGTERM when the
    fence is lost. What is still there `grace` seconds later is killed. Where this process is killed, the same is done
    without it, within half the lease, so before another gets the fence.

    Raises `InvalidRequest` where the command cannot be run.
    """
    if not command:
        raise InvalidRequest("no command to run: put it behind --, as in `latchwork lock run NAME -- ./job.sh`")
    told = {f"LATCHWORK_{name.upper()}": str(value) for name, value in facts.items()}
    with Supervisor() as supervisor, Foreground() as foreground, _Signals() as signals:
        run = Run(supervisor, grace, min(grace, lease / 2), lost, foreground, signals)
        return run.result(command, {**os.environ, **told, **more})


class Supervisor:
    """The process that runs commands for this one, one after the other. Entering starts it, leaving ends it."""

    def __enter__(self) -> Supervisor:
        return self.start()

    def start(self) -> Supervisor:
        """Start the process."""
        self._end, theirs = socket.socketpair()
        self._unread = b""
        # What interrupts this process must not end the other one before it holds all signals back by itself.
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
        """Let it end, and what it is running."""
        with suppress(OSError):  # it was killed
            self._end.shutdown(socket.SHUT_WR)  # a thread may be listening to it yet

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()

    def fileno(self) -> int:
        """What can be read when it has said something."""
        return self._end.fileno()

    def ask(self, descriptors: Sequence[int] = (), **asked: Any) -> None:
        """Ask it for something, with these open files. Where it has gone, that is heard."""
        data = json.dumps(asked).encode() + b"\n"
        with suppress(OSError):
            sent = socket.send_fds(self._end, [data], descriptors) if descriptors else 0
            self._end.sendall(data[sent:])

    def said(self) -> list[dict[str, Any]]:
        """What it has said; waits for it. Raises `EOFError` where it has gone."""
        try:
            data = self._end.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Supervisors:
    """As many supervisors as commands run at a time, each of which is used again. Leaving it ends what still runs.

    foreground: the terminal, where commands run in the main thread alone.
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

    def run(self, command: Sequence[str], environment: Mapping[str, str], data: bytes, stdout: int | None) -> int:
        """The exit code of a command that reads `data`, when nothing is left of it. From any thread.

        Raises `InvalidRequest` where it cannot be run.
        """
        try:
            supervisor = self._idle.pop()
        except IndexError:
            supervisor = Supervisor().start()
            self._all.append(supervisor)
        code = Run(supervisor, foreground=self._foreground).result(command, environment, data, stdout)
        self._idle.append(supervisor)
        return code


class Run:
    """One command that a supervisor runs.

    grace: seconds between the signal that tells the command to end and SIGKILL; `grace_alone`: where this process has
    gone.  lost: tells when the command must end.  foreground, signals: of the main thread, where it runs there.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        grace: float = GRACE,
        grace_alone: float = GRACE,
        lost: Loss | None = None,
        foreground: Foreground | None = None,
        signals: _Signals | None = None,
    ) -> None:
        self._supervisor, self._grace, self._grace_alone = supervisor, grace, grace_alone
        self._lost, self._foreground, self._signals = lost, foreground, signals
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
        """The command's exit code when nothing is left of it; 128 more than the signal that ended it.

        data: what it reads on its stdin, instead of ours.  stdout: where what it prints goes.
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
            self._heed_signals()
            if self._lost is not None and not self._is_lost and self._group and self._lost.is_set():
                self._is_lost = True
                note("the fence was lost; ending the command")
                self._end(signal.SIGTERM)
            sinks = [] if self._stdin is None else [self._stdin]
            pause = None if self._lost is None and self._signals is None else LOOK_EVERY
            heard, taking, _ = select.select([self._supervisor], sinks, [], pause)
            if taking:
                self._feed_some()
            if heard:
                try:
                    for said in self._supervisor.said():
                        self._hear(said, name)
                except EOFError:
                    self._supervisor_has_gone()

    def _hear(self, said: dict[str, Any], name: str) -> None:
        if "failed" in said:
            self._status = LOST
            raise InvalidRequest(f"cannot run {shown(name)}: {said['failed']}")
        if "began" in said:
            self._group = said["began"]
            if self._foreground is not None:
                self._foreground.began(self._group)
        elif "stopped" in said:
            self._stopped(said["stopped"])
        elif "left" in said and not said["left"]:
            note("the command has ended; ending what it left running")
        elif "ended" in said:
            self._status = said["ended"]

    def _stopped(self, number: int) -> None:
        if number == signal.SIGSTOP:  # by somebody who wants just that
            return
        if self._foreground is None or not self._foreground.stopped(number):
            note("the command wants to read the terminal, which is not to be had; ending it")
            self._end(signal.SIGTERM)
        elif self._lost is None or not self._lost.is_set():  # else it is ended before it goes on
            self._supervisor.ask(signal=signal.SIGCONT)

    def _heed_signals(self) -> None:
        for number in self._signals.taken() if self._signals is not None and self._group else ():
            if number == signal.SIGTSTP:
                self._supervisor.ask(signal=number)
            else:
                self._end(number)

    def _end(self, number: int) -> None:
        self._supervisor.ask(end=number, grace=self._grace)

    def _supervisor_has_gone(self) -> None:
        """It was killed, and the command with it by the system; the rest of its group is known here."""
        self._status = LOST
        seams, left = SYSTEM, self._grace
        with suppress(OSError):
            while self._group and left > 0:
                os.killpg(self._group, signal.SIGKILL)
                seams.sleep(LOOK_EVERY)
                left -= LOOK_EVERY
        raise LatchworkError("the process that watches over the command was killed, and the command with it")

    # ---- its stdin

    def _feed_some(self) -> None:
        try:
            self._feed = self._feed[os.write(self._stdin or 0, self._feed[:CHUNK]) :]
        except OSError:  # it reads no more
            self._feed = b""
        if not self._feed:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None


class _Signals:
    """Keeps the signals that are for the command while it is entered, in the main thread; ignored ones stay ignored."""

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
        """The signals that have come since this was asked last."""
        came = self._came[:]
        del self._came[: len(came)]
        return came
