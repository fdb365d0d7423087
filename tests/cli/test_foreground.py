"""Who has the terminal's foreground: the command that is run, this process, or another job of the shell."""

from __future__ import annotations

import os
import signal
import stat
import termios
from types import SimpleNamespace

import pytest

from latchwork.cli.run import foreground
from latchwork.cli.run.foreground import Foreground

OURS, COMMANDS, ANOTHERS = 10, 20, 30
"""Process groups."""


class Terminal:
    """The terminal of a process, as the system tells it; `front` is the group in the foreground.

    continues: what the shell puts in front as it continues this process, once it is stopped; None = there is no shell.
    """

    O_RDWR, O_CLOEXEC, O_NOCTTY = os.O_RDWR, os.O_CLOEXEC, os.O_NOCTTY

    def __init__(self):
        self.front, self.continues, self.stopped, self.streams = OURS, None, 0, {}
        self.is_there, self.is_open, self.modes = True, False, []

    def open(self, path, flags):
        if not self.is_there:
            raise OSError("no such device")
        self.is_open = True
        return 7

    def close(self, number):
        self.is_open = False

    def getpgrp(self):
        return OURS

    def tcgetpgrp(self, number):
        return self.front

    def tcsetpgrp(self, number, group):
        self.front = group

    def killpg(self, group, number):
        assert (group, number) == (OURS, signal.SIGTSTP)
        self.stopped += 1
        if self.continues is not None:
            self.front = self.continues
            signal.raise_signal(signal.SIGCONT)

    def fstat(self, stream):
        if self.streams.get(stream) == "closed":
            raise OSError("bad file descriptor")
        return SimpleNamespace(st_mode=self.streams.get(stream, stat.S_IFCHR))


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setattr(foreground, "os", found)
    modes = SimpleNamespace(
        error=termios.error, TCSADRAIN=termios.TCSADRAIN, tcgetattr=lambda _: ["as it was"],
        tcsetattr=lambda _, when, set_to: found.modes.append(set_to),
    )  # fmt: skip
    monkeypatch.setattr(foreground, "termios", modes)
    return found


@pytest.mark.parametrize(
    ("front", "streams", "at_once", "is_offered"),
    [
        (OURS, {}, True, True),
        (OURS, {0: "closed"}, True, True),
        (OURS, {}, False, False),
        (ANOTHERS, {}, True, False),
        (OURS, {1: stat.S_IFIFO}, True, False),
        (OURS, {0: stat.S_IFSOCK}, True, False),
    ],
)
def test_a_command_has_the_terminal_from_its_start_only_in_the_foreground_and_outside_a_pipeline(
    terminal, front, streams, at_once, is_offered
):
    terminal.front, terminal.streams = front, streams
    with Foreground(at_once=at_once) as held:
        assert held.is_offered is is_offered


def test_without_a_terminal_nothing_is_offered_and_none_is_put_back(terminal):
    terminal.is_there = False
    with Foreground() as held:
        assert not held.is_offered
        held.began(COMMANDS)
        held.ended(-signal.SIGTERM)
    assert (terminal.modes, terminal.front) == ([], OURS)


@pytest.mark.parametrize(
    ("number", "fronts", "goes_on", "then"),
    [
        pytest.param(signal.SIGTTIN, (OURS, None), True, COMMANDS, id="it-wants-what-is-ours"),
        pytest.param(signal.SIGTSTP, (COMMANDS, OURS), True, COMMANDS, id="ctrl-z-and-fg"),
        pytest.param(signal.SIGTSTP, (COMMANDS, ANOTHERS), True, ANOTHERS, id="ctrl-z-and-bg"),
        pytest.param(signal.SIGTSTP, (OURS, OURS), True, OURS, id="stopped-while-it-does-not-have-it"),
        pytest.param(signal.SIGTSTP, (COMMANDS, None), True, COMMANDS, id="ctrl-z-without-a-shell"),
        pytest.param(signal.SIGTTOU, (ANOTHERS, None), False, ANOTHERS, id="nobody-would-ever-give-it"),
        pytest.param(signal.SIGTTIN, (ANOTHERS, OURS), True, COMMANDS, id="the-shell-gives-it"),
        pytest.param(signal.SIGTTIN, (ANOTHERS, ANOTHERS), True, ANOTHERS, id="it-asks-again-later"),
    ],
)
def test_a_command_that_is_stopped_gets_the_terminal_or_is_stopped_with_this_process(
    terminal, number, fronts, goes_on, then
):
    with Foreground() as held:
        held.began(COMMANDS)
        front, _ = terminal.front, terminal.continues = fronts
        assert held.stopped(number) is goes_on
        assert (terminal.front, terminal.stopped) == (then, int(front != OURS or number == signal.SIGTSTP))
    assert not terminal.is_open
    assert terminal.front == (OURS if then == COMMANDS else then), "it is taken back"


@pytest.mark.parametrize(("status", "modes"), [(0, []), (3, []), (-signal.SIGKILL, [["as it was"]])])
def test_a_command_that_a_signal_has_ended_leaves_the_terminal_as_it_was(terminal, status, modes):
    with Foreground() as held:
        held.began(COMMANDS)
        terminal.front = COMMANDS
        held.ended(status)
        assert (terminal.front, terminal.modes) == (OURS, modes)


@pytest.mark.parametrize(
    ("at_once", "asked", "status", "is_passed_on"),
    [
        (False, True, -signal.SIGINT, True),
        (True, True, -signal.SIGINT, False),
        (False, False, -signal.SIGINT, False),
        (False, True, -signal.SIGTERM, False),
    ],
)
def test_a_ctrl_c_that_reached_the_command_alone_is_one_for_this_process_too(
    terminal, at_once, asked, status, is_passed_on
):
    with Foreground(at_once=at_once) as held:
        for _ in range(2):  # what one command has asked for is not said of the next one
            held.began(COMMANDS)
        if asked:
            held.stopped(signal.SIGTTIN)
        if is_passed_on:
            with pytest.raises(KeyboardInterrupt):
                held.ended(status)
        else:
            held.ended(status)
