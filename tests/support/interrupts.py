"""An interrupt, as Ctrl-C, at every instruction at which Python may raise one.

    interrupts = Interrupts(at=17)
    with suppress(KeyboardInterrupt):
        interrupts.run(lambda: lock.acquire(5))     # the 17th point of this call; `points_of` counts them

Python raises an interrupt as a function begins, after a call of what is written in C, and where a loop jumps back: not
in between, and not after a call of a Python function has returned, which is what makes `with` of a C lock safe. That is
done here to the package's own code; what it calls elsewhere counts as one instruction. `everywhere` takes each single
instruction instead, of the package and of the caller, which is more than Python does, and does not suit code with
locks.
"""

from __future__ import annotations

import dis
import sys
from functools import cache
from pathlib import Path

import latchwork

try:
    from greenlet import getcurrent
except ImportError:  # then there are no other greenlets either
    from threading import current_thread as getcurrent

SOURCE = str(Path(latchwork.__file__).resolve().parent)
CALLS = ("CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_METHOD", "CALL_KW")
MADE_BY_C = ("__init__", "__new__", "__post_init__")
"""Python functions that are called from C, after which Python looks for an interrupt."""


class Interrupts:
    """Counts the points of a call; raises `KeyboardInterrupt` at one of them, or calls a signal's `handler` there."""

    def __init__(self, at: int | None = None, *, everywhere: bool = False, handler=None) -> None:
        self.at, self.everywhere, self.handler = at, everywhere, handler
        self.points = 0
        self.struck: str | None = None
        self._last: dict = {}
        self._who = None

    def run(self, call):
        """What the call returns, unless it is interrupted."""
        self._who = getcurrent()
        code = call.__code__
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 begins with the next `settrace`
        sys.settrace(lambda frame, event, arg: self._entered(frame, event, code))
        try:
            return call()
        finally:
            sys.settrace(before)
            self._last.clear()

    def _entered(self, frame, event, code):
        if event != "call" or getcurrent() is not self._who:
            return None
        ours = frame.f_code.co_filename.startswith(SOURCE)
        if not ours and not (self.everywhere and frame.f_code is code):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._point(frame, "begins")
        return self._stepped

    def _stepped(self, frame, event, arg):
        if getcurrent() is not self._who:
            return self._stepped
        if event == "opcode":
            last, name = self._last.get(frame), _names(frame.f_code).get(frame.f_lasti, "?")
            self._last[frame] = name
            if self.everywhere or last in CALLS or (last and "BACKWARD" in last):
                self._point(frame, f"{name} after {last}")
        elif event == "return":
            self._last.pop(frame, None)
            caller = frame.f_back
            if caller in self._last and frame.f_code.co_name not in MADE_BY_C:
                self._last[caller] = "a Python function"
        return self._stepped

    def _point(self, frame, what) -> None:
        number, self.points = self.points, self.points + 1
        if number == self.at:
            self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}: {what}" if _QUALIFIED else what
            if self.handler is None:
                raise KeyboardInterrupt
            self.handler()


@cache
def _names(code) -> dict[int, str]:
    """The name of the instruction at each place; kept for all runs, as a run takes less time than finding them out."""
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


_QUALIFIED = sys.version_info >= (3, 11)


def points_of(scenario, *, everywhere: bool = False) -> int:
    """How many points the call has that the scenario interrupts: a function of an `Interrupts`."""
    interrupts = Interrupts(everywhere=everywhere)
    scenario(interrupts)
    return interrupts.points
