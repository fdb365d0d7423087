"""The closing table of the simulations."""

from __future__ import annotations

from .report.tally import Tally, table

TALLIES: list[Tally] = []
NOTES: list[str] = []


def pytest_terminal_summary(terminalreporter):
    if TALLIES:
        terminalreporter.section("simulated: what was proved")
        terminalreporter.write_line(table(TALLIES))
        for note in NOTES:
            terminalreporter.write_line(note)
