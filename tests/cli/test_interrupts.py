"""Signals that come while a command says what it has done."""

from __future__ import annotations

import os
import signal

import pytest

from latchwork.cli.exit_codes import INTERRUPTED
from latchwork.cli.interrupts import ENDS, interrupted_once, pass_over


@pytest.fixture(autouse=True)
def before():
    """The handlers as they are before a command; each passes its signal over."""
    kept = {number: signal.signal(number, lambda *_: None) for number in ENDS}
    yield {number: signal.getsignal(number) for number in ENDS}
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def exits(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_that_comes_again_ends_the_process_only_at_the_third_time(number, exits):
    pass_over(ENDS)
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert exits == []
    signal.raise_signal(number)
    assert exits == [INTERRUPTED]


@pytest.mark.parametrize(("for_good", "ended"), [(False, [INTERRUPTED]), (True, [])])
def test_the_first_signal_interrupts_and_those_behind_it_do_not(before, exits, for_good, ended):
    with interrupted_once(for_good=for_good):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert exits == ended
    assert {number: signal.getsignal(number) for number in ENDS} == before


def test_a_signal_that_the_command_was_started_to_ignore_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    with interrupted_once():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
