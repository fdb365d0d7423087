"""The terminal's foreground, as a shell gives it to its jobs: handed to a command and taken back.

A command that is run has a process group of its own. Only the group in the foreground may read the terminal, and is
what Ctrl-C and Ctrl-Z reach; so the command's is put there. In a pipeline it waits until the command asks to read: the
pager at the other end wants the keys meanwhile.
"""

from __future__ import annotations

import os
import signal
import stat
import termios
from contextlib import suppress
from typing import Any

_STREAMS = (0, 1, 2)
_ASKS = (signal.SIGTTIN, signal.SIGTTOU)
"""The signals that stop a process in the background that wants the terminal."""


class Foreground:
    """The controlling terminal of this process, if it has one. To be entered in the main thread.

    at_once: offer it to the command from its start; else when the command asks for it.
    """

    def __init__(self, *, at_once: bool = True) -> None:
        self._at_once = at_once
        self._was_asked_for = False
        self._terminal: int | None = None
        self._group = 0
        self._modes: list[Any] = []
        self._before: Any = None

    def __enter__(self) -> Foreground:
        with suppress(OSError):  # there is no terminal
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        if self._terminal is not None:
            self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # to take it back from the background
            with suppress(termios.error):
                self._modes = termios.tcgetattr(self._terminal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            self._take_back()
            signal.signal(signal.SIGTTOU, self._before)
            os.close(self._terminal)
            self._terminal = None

    @property
    def is_offered(self) -> bool:
        """Whether a command is to have it from its start."""
        return self._at_once and self._is_ours and not any(map(_is_pipe, _STREAMS))

    def began(self, group: int) -> None:
        """Take note of the command's process group."""
        self._group, self._was_asked_for = group, False

    def ended(self, status: int) -> None:
        """Take the terminal back after the command has ended; a negative status means by a signal.

        Raises `KeyboardInterrupt` if the signal was a Ctrl-C that is for this process too, but did not reach it.
        """
        self._take_back()
        if status < 0 and self._terminal is not None and self._modes:  # the command could not put them back
            with suppress(termios.error):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._modes)
        if status == -signal.SIGINT and self._was_asked_for and not self._at_once:
            raise KeyboardInterrupt

    def stopped(self, number: int) -> bool:
        """Handle that this signal has stopped the command; return whether the command is to continue.

        If it wants the terminal, it gets it. Else, as at Ctrl-Z, this process and the others of its pipeline stop too,
        until the shell continues them. If there is no such shell, a process that wants the terminal never gets it.
        """
        self._was_asked_for = self._was_asked_for or number in _ASKS
        if number in _ASKS and self._is_ours:
            self._give()
            return True
        has_it = self._foreground == self._group
        self._take_back()
        is_shells = self._suspended()
        if self._is_ours and (has_it or number in _ASKS):
            self._give()
            return True
        return is_shells or number not in _ASKS

    def _suspended(self) -> bool:
        """Stop until SIGCONT arrives; return False at once if no process would send it."""
        continued: list[int] = []
        before = signal.signal(signal.SIGCONT, lambda number, _: continued.append(number))
        stops = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)  # has no effect if no shell controls the group
        signal.signal(signal.SIGTSTP, stops)
        signal.signal(signal.SIGCONT, before)
        return bool(continued)

    @property
    def _foreground(self) -> int | None:
        if self._terminal is None:
            return None
        try:
            return os.tcgetpgrp(self._terminal)
        except OSError:  # it was closed
            return None

    @property
    def _is_ours(self) -> bool:
        return self._foreground == os.getpgrp()

    def _give(self) -> None:
        self._set(self._group)

    def _take_back(self) -> None:
        if self._group and self._foreground == self._group:
            self._set(os.getpgrp())

    def _set(self, group: int) -> None:
        if self._terminal is not None:
            with suppress(OSError):  # the terminal or the command is gone
                os.tcsetpgrp(self._terminal, group)


def _is_pipe(stream: int) -> bool:
    try:
        mode = os.fstat(stream).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
