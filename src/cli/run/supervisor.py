"""A process that runs commands for another one, its parent, and ends all that they have started when the parent asks
for it or has died.

It is run as a file, alone (`python -I -S supervisor.py DESCRIPTOR`), and imports nothing of the package: so it starts
in some milliseconds, and has one thread, in which a fork is safe. It runs in a process group of its own and blocks
every signal except SIGCHLD, so that a signal that ends its parent does not end it. It notices that the other end of its
socket was closed, which happens even after SIGKILL.

A command gets a process group of its own, to which signals are sent. It has ended when no process of it is left: on
Linux no process that descends from it, in any group or session, because the supervisor becomes their parent when theirs
has died; on other systems no process in its group. If the supervisor itself is killed, Linux kills the command.

Each line on the socket is a JSON document. Requests: `run`, `signal`, `end`. Messages: `began`, `failed`, `stopped`,
`left`, `ended`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NAME = "latchwork-keep"
"""The name in /proc, which has 15 bytes: by it a supervisor recognises another one among its descendants."""
LOOK_EVERY = 0.1
"""Seconds between two looks for processes that a command has left: not every process reports its end."""
LINUX = sys.platform == "linux"
CHUNK = 65_536
_PDEATHSIG, _SET_NAME, _SUBREAPER = 1, 15, 36
"""Numbers of Linux's prctl."""


class Parent:
    """The process that sends requests: documents from it and to it, until it has died.

    asked: requests that are not done yet.
    descriptors: open files that came with them.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end, self.has_gone = end, False
        self.asked: deque[dict[str, Any]] = deque()
        self.descriptors: list[int] = []
        self._unread = b""

    def listen(self) -> None:
        """Wait for a piece of a document, or for its end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.end, CHUNK, 1)
        except OSError:  # it was killed before it had read the request
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self.has_gone = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        self.asked += map(json.loads, lines)
        self.descriptors += descriptors

    def send(self, **message: Any) -> None:
        """Send a document."""
        with suppress(OSError):  # it is gone, which the next read notices
            self.end.sendall(json.dumps(message).encode() + b"\n")


class Command:
    """One command and all that it has started."""

    def __init__(self, asked: dict[str, Any], stdin: int | None) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - running it is what was asked for
            asked["run"],
            env=asked["environment"],
            stdin=stdin,
            stdout=asked["stdout"],
            preexec_fn=_prepared(asked),  # noqa: PLW1509 - this process has one thread
        )
        self.group = self.process.pid
        self.status: int | None = None
        self.stopped: int | None = None
        self.is_ending = self.is_killed = False
        self._is_childless = False
        self._signalled: set[int] = set()

    @property
    def _has_group(self) -> bool:
        return self.status is None or not LINUX

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left of it."""
        if self.status is None:
            return False
        return self._is_childless if LINUX else not _send(os.killpg, self.group, 0)

    def reap(self) -> None:
        """Take note of what has ended or stopped, adopted processes too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self._is_childless = True
                return
            if not pid:
                return
            if pid == self.group and os.WIFSTOPPED(status):
                self.stopped = os.WSTOPSIG(status)
            elif pid == self.group:
                self.status = self.process.returncode = os.waitstatus_to_exitcode(status)

    def signal(self, number: int) -> None:
        """Send a signal to its group, for as long as the number of the group is surely its own."""
        if self._has_group:
            _send(os.killpg, self.group, number)

    def end(self, number: int, grace: float) -> None:
        """Ask it to end; the first time, kill what is left after the grace."""
        if not self.is_ending:
            self.is_ending = True
            self.is_killed = grace <= 0
            signal.setitimer(signal.ITIMER_REAL, max(0.0, grace))
        self.signal(number)
        self.signal(signal.SIGCONT)  # a stopped process gets no other signal
        if number == signal.SIGTERM and self._has_group and LINUX:
            self._signalled |= {pid for pid, group in _descendants() if group == self.group}

    def end_the_rest(self) -> None:
        """Ask all others to end, each once, after the command itself has ended."""
        for pid in {pid for pid, _ in _descendants()} - self._signalled if LINUX else ():
            self._signalled.add(pid)
            _send(os.kill, pid, signal.SIGTERM)
            _send(os.kill, pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill whatever is there now; to be called until it has ended, as some may just have been started."""
        self.signal(signal.SIGKILL)
        for pid, _ in _descendants(supervised=True) if LINUX else ():
            _send(os.kill, pid, signal.SIGKILL)


def serve(parent: Parent) -> None:
    """Run one command after the other, until the parent has died."""
    bell = _bell()
    while not parent.has_gone:
        parent.listen()
        while parent.asked:
            asked = parent.asked.popleft()
            if "run" in asked:  # any other request is for a command that has just ended
                _run(parent, bell, asked)


def _run(parent: Parent, bell: int, asked: dict[str, Any]) -> None:
    with suppress(BlockingIOError):  # the grace of the command before may have been over just as that ended
        os.read(bell, CHUNK)
    try:
        command = Command(asked, parent.descriptors[0] if asked["fed"] else None)
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        parent.send(
            failed=getattr(failure, "strerror", None) or str(failure), is_absent=isinstance(failure, FileNotFoundError)
        )
        return
    finally:
        while parent.descriptors:
            os.close(parent.descriptors.pop())
    try:
        _see_through(parent, bell, asked, command)
    finally:  # a defect here must not leave it running
        while not command.has_ended:
            command.kill()
            select.select([], [], [], LOOK_EVERY)
            command.reap()
    signal.setitimer(signal.ITIMER_REAL, 0)
    parent.send(ended=command.status)


def _see_through(parent: Parent, bell: int, asked: dict[str, Any], command: Command) -> None:
    """Wait until nothing is left of the command, and do what is asked for meanwhile."""
    parent.send(began=command.group)
    has_told_of_rest = False
    while not command.has_ended:
        _wait(parent, bell, command)
        command.reap()
        if command.stopped is not None:
            parent.send(stopped=command.stopped)
            command.stopped = None
        if parent.has_gone and not command.is_ending:
            command.end(signal.SIGTERM, asked["grace_alone"])
        if command.is_killed:
            command.kill()
        elif command.status is not None and not command.has_ended:
            if not has_told_of_rest:
                has_told_of_rest = True
                parent.send(left=command.is_ending)
            if not command.is_ending:
                command.end(signal.SIGTERM, asked["grace"])
            command.end_the_rest()


def _wait(parent: Parent, bell: int, command: Command) -> None:
    """Wait until something happens, and do what is asked for."""
    sources: list[Any] = [bell] if parent.has_gone else [bell, parent.end]
    is_over = command.status is not None or command.is_killed
    pause = 0 if parent.asked else LOOK_EVERY if is_over else None
    ready, _, _ = select.select(sources, [], [], pause)
    if bell in ready and signal.SIGALRM in os.read(bell, CHUNK):
        command.is_killed = True
    if parent.end in ready:
        parent.listen()
    while parent.asked:
        asked = parent.asked.popleft()
        if "end" in asked:
            command.end(asked["end"], asked["grace"])
        elif "signal" in asked:
            command.signal(asked["signal"])


def _prepared(asked: dict[str, Any]) -> Callable[[], None]:
    """Return the steps of the command between its fork and its start: its group, the terminal, its end with its parent,
    its signals.
    """
    supervisor = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        if asked["foreground"]:
            with suppress(OSError):  # the terminal is gone
                terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
                os.tcsetpgrp(terminal, os.getpgrp())  # SIGTTOU would stop it here, so it is blocked
                os.close(terminal)
        _control(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor was killed before this was set
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["mask"])

    return prepare


def _descendants(*, supervised: bool = False) -> list[tuple[int, int]]:
    """Return every process that descends from this one, with its group.

    supervised: include the processes of other supervisors. Those end their own processes, with their parent; a process
        that gets two signals to end may hurry, as `latchwork worker` does.
    """
    children: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - far quicker than paths
        with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as opened:  # noqa: PTH123 - as above
            before, _, after = opened.read().rpartition(b")")
            state, parent, group = after.split()[:3]
            if state != b"Z":
                children[int(parent)].append((int(entry), int(group), before.partition(b"(")[2]))
    found: list[tuple[int, int]] = []
    parents = [os.getpid()]
    while parents:
        for child, its_group, name in children[parents.pop()]:
            if supervised or name != NAME.encode():
                found.append((child, its_group))
                parents.append(child)
    return found


def _send(how: Callable[[int, int], None], whom: int, number: int) -> bool:
    """Send a signal; return whether any process is left. One of another user is left, but gets no signal."""
    try:
        how(whom, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return LINUX  # other systems raise it for a group of dead processes only
    return True


def _control(option: int, value: Any) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _bell() -> int:
    """Return a descriptor that can be read when a child has ended or the grace is over; all other signals are blocked
    from now on.
    """
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    waking = (signal.SIGCHLD, signal.SIGALRM)
    for number in waking:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - set(waking))
    return reading


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    with suppress(PermissionError):  # it leads a session already
        os.setpgid(0, 0)
    _control(_SUBREAPER, 1)
    _control(_SET_NAME, NAME.encode())
    with socket.socket(fileno=int(sys.argv[1])) as end:
        end.set_inheritable(False)
        serve(Parent(end))


if __name__ == "__main__":
    main()
