"""A command that is run, as its supervisor tells of it."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from types import SimpleNamespace

import pytest

from latchwork.cli.run.supervise import SupervisedRun


class Supervisor:
    """A supervisor that says what it is to say, one message at a time."""

    mask = ()

    def __init__(self, *said):
        self.said, self.asked = list(said), []
        self._end, self._other = socket.socketpair()
        self._other.send(b".")

    def fileno(self):
        return self._end.fileno()

    def messages(self):
        return [self.said.pop(0)]

    def ask(self, descriptors=(), **asked):
        if "run" not in asked:
            self.asked.append(asked)

    def close(self):
        self._end.close()
        self._other.close()


BEGAN, ENDED = {"began": 20}, {"ended": 3}
SEIZED = [{"end": signal.SIGTERM, "grace": 5.0}]


def asked_of(*said, exits=3, **facts):
    """What is asked of the supervisor of a command that exits with 3."""
    with closing(Supervisor(*said, ENDED)) as supervisor:
        assert SupervisedRun(supervisor, 5.0, **facts).result(["job"], {}) == exits
        return supervisor.asked


def terminal(goes_on):
    return SimpleNamespace(is_offered=False, began=lambda _: None, ended=lambda _: None, stopped=goes_on)


@pytest.mark.parametrize(
    ("number", "foreground", "asked"),
    [
        (signal.SIGSTOP, None, []),
        (signal.SIGTTIN, None, SEIZED),
        (signal.SIGTTIN, terminal(lambda number: number != signal.SIGTTIN), SEIZED),
        (signal.SIGTSTP, terminal(lambda number: number == signal.SIGTSTP), [{"signal": signal.SIGCONT}]),
    ],
    ids=["by-another-process", "no-terminal", "it-cannot-have-it", "continued"],
)
def test_a_command_that_is_stopped_goes_on_or_is_ended_that_wants_a_terminal_it_cannot_have(
    capsys, number, foreground, asked
):
    assert asked_of(BEGAN, {"stopped": number}, foreground=foreground) == asked
    assert ("which it cannot have; ending the command" in capsys.readouterr().err) == (asked == SEIZED)


@pytest.mark.parametrize(
    ("is_lost", "asked", "exits"), [(False, [{"signal": signal.SIGCONT}], 3), (True, SEIZED, 1)], ids=["held", "lost"]
)
def test_a_command_does_not_go_on_whose_fence_was_lost_while_it_was_stopped(is_lost, asked, exits):
    stopped = []
    there = terminal(lambda number: not stopped.append(number))
    lost = {"lost": lambda: is_lost and stopped != []}
    assert asked_of(BEGAN, {"stopped": signal.SIGTSTP}, foreground=there, exits=exits, **lost) == asked


def test_signals_are_handed_on_once_the_command_has_begun():
    came, before = [signal.SIGTSTP, signal.SIGHUP], {"left": True}
    signals = SimpleNamespace(taken=lambda: [came.pop(0)] if came else [])
    assert asked_of(before, BEGAN, before, before, signals=signals) == [
        {"signal": signal.SIGTSTP}, {"end": signal.SIGHUP, "grace": 5.0},
    ]  # fmt: skip
    assert came == []


@pytest.mark.parametrize("left", [[], [7]])
def test_processes_that_a_command_has_left_running_are_told_of_as_they_are_ended(capsys, left):
    assert asked_of(BEGAN, {"left": left}) == []
    assert ("ending the processes that it left running" in capsys.readouterr().err) == (not left)


def test_the_terminal_is_told_which_group_has_begun_and_how_the_command_has_ended():
    told = []
    there = SimpleNamespace(is_offered=False, began=told.append, ended=told.append)
    assert asked_of(BEGAN, foreground=there) == []
    assert told == [20, 3]
