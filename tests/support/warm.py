"""Processes of the command that need not load it: each is forked by one that has, which saves 0.4 s of processor time.
A program that is read from stdin, as `python -` reads it, can be run so, too.

They are as real as others: a process id, signals, open files, a terminal, an exit code and an exit of their own. What
is about the start of the command, or is started by a shell, takes `python -m latchwork.cli`.
"""

from __future__ import annotations

import fcntl
import gc
import io
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Timer
from types import ModuleType

from pexpect.fdpexpect import fdspawn

DEFAULTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
PATIENCE = 60
"""Seconds."""
PROGRAM = "-"
"""In place of the words of a command: run the program that stdin has."""


class Warm:
    """The process that has loaded the command, and what it has begun."""

    def __init__(self):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def begin(self, words, files, env, *, cwd=None, terminal=False, ignored=()):
        """Fork a command with these three open files. Its process id, and the socket that will tell its exit code."""
        mine, theirs = socket.socketpair()
        request = {"words": words, "env": dict(env), "cwd": cwd, "terminal": terminal, "ignored": [*map(int, ignored)]}
        with theirs:
            socket.send_fds(self._control, [json.dumps(request).encode()], [*files, theirs.fileno()])
        told = mine.makefile()
        return int(told.readline()), told

    def start(self, *words, stdin=None, stdout=None, env=None, **more):
        """Start a command in a session of its own. Its output is read, or goes to the file that `stdout` names."""
        return Process(self, words, (stdin, stdout), os.environ if env is None else env, **more)

    def run(self, *words, **more):
        """A command that has ended, as `subprocess.run` returns it."""
        process = self.start(*words, **more)
        out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run_program(self, code, folder, env):
        """Run a program in a folder as `python -` does, without the time that it takes to load this package."""
        (folder / "program").write_text(code)
        with (folder / "program").open() as program:
            return self.run(PROGRAM, stdin=program.fileno(), env=env, cwd=str(folder))

    def on_terminal(self, *words, size=(24, 80), env=None, timeout=30):
        """Start a command on a terminal of its own, for pexpect."""
        return OnTerminal(self, words, size, os.environ if env is None else env, timeout)

    def close(self):
        self._control.close()
        self._process.wait(PATIENCE)


class Process:
    """As much of `subprocess.Popen` as the tests use."""

    def __init__(self, warm, words, streams, env, **more):
        stdin, stdout = streams
        inner = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        if stdout is not None:
            os.close(theirs_out)
            theirs_out = os.open(stdout, os.O_WRONLY)
        try:
            self.pid, self._told = warm.begin(words, (inner, theirs_out, theirs_err), env, **more)
        finally:
            for file in (theirs_out, theirs_err, *([inner] if stdin is None else [])):
                os.close(file)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self.returncode = None

    def poll(self):
        """Its exit code, if it has ended."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told.readline())
        return self.returncode

    def wait(self, timeout=PATIENCE):
        """Its exit code, once it has ended."""
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def communicate(self, timeout=PATIENCE):
        """All that it prints until it has ended, to both streams."""
        late = Timer(timeout, self.kill)
        late.start()
        with ThreadPoolExecutor(1) as pool:
            err = pool.submit(self.stderr.read)
            told = self.stdout.read(), err.result()
        late.cancel()
        self.wait(timeout)
        return told

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def close(self):
        """End it, if it still runs."""
        self.kill()
        self.wait()
        self.stdout.close()
        self.stderr.close()


class OnTerminal(fdspawn):
    """As much of `pexpect.spawn` as the tests use."""

    exitstatus = signalstatus = None

    def __init__(self, warm, words, size, env, timeout):
        mine, theirs = pty.openpty()
        fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.pid, self._told = warm.begin(words, (theirs,) * 3, env, terminal=True)
        os.close(theirs)
        super().__init__(mine, timeout=timeout, encoding="utf-8")

    def wait(self):
        """Wait until it has ended."""
        code = int(self._told.readline())
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        return self.exitstatus

    def sendintr(self):
        """Type Ctrl-C."""
        self.send("\x03")

    def close(self, force=True):
        """End it, if it still runs."""
        if self.exitstatus is None and self.signalstatus is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        super().close()


# ---- the process that has loaded the command


def _serve(control):
    """Fork a process for each request; return it there."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = {}
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_the_dead(running)
        if control in ready:
            asked, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not asked:
                os._exit(0)  # the tests have ended
            pid = os.fork()
            if not pid:
                for one in (control, *running.values()):
                    one.close()
                return json.loads(asked), files
            running[pid] = socket.socket(fileno=files.pop())
            running[pid].sendall(f"{pid}\n".encode())
            for file in files:
                os.close(file)


def _tell_of_the_dead(running):
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as told, suppress(OSError):
                told.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _become(asked, files):
    """Become as a process is that Python has just started."""
    signal.set_wakeup_fd(-1)
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if asked["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(asked["env"])
    if asked["cwd"] is not None:
        os.chdir(asked["cwd"])
    sys.path[0] = str(Path.cwd())
    sys.argv = ["latchwork", *asked["words"]]
    sys.stdin = os.fdopen(0)
    at_once = "PYTHONUNBUFFERED" in os.environ
    out = os.fdopen(1, "wb", 0 if at_once else -1)
    sys.stdout = io.TextIOWrapper(out, line_buffering=os.isatty(1), write_through=at_once)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), errors="backslashreplace", line_buffering=True)


def _load():
    """What most commands use."""
    modules = [place.module for place in COMMANDS.values() if place.module.startswith(("coord", "queue"))]
    for name in ("doctor", "stats", "tables", "worker", *modules):
        import_module(f"latchwork.cli.{name}")
    import_module("typer._adapters")
    gc.freeze()


if __name__ == "__main__":
    from latchwork.cli import main
    from latchwork.cli.app import COMMANDS

    _load()
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
    if sys.argv[1:] == [PROGRAM]:
        sys.argv, sys.path[0] = [PROGRAM], ""
        program = compile(sys.stdin.read(), "<stdin>", "exec")
        sys.modules[__name__] = ModuleType(__name__)  # the program has names of its own
        exec(program, vars(sys.modules[__name__]))
    else:
        main(sys.argv[1:])
