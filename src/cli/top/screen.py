"""The terminal of `latchwork top`: lines are drawn by curses, and keys are read. Whatever ends it, the terminal is left
as it was.
"""

from __future__ import annotations

import curses
import locale
import os
import signal
from contextlib import suppress
from typing import Any, NoReturn

from .app import Top
from .table import BAD, BARS, CHOSEN, FAINT, PLAIN, PLAIN_BARS, TITLE, WARN

TICK_MS = 250
"""Milliseconds after which the screen is drawn again without a key."""
KEYS = {
    curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_LEFT: "left", curses.KEY_RIGHT: "right",
    curses.KEY_PPAGE: "pgup", curses.KEY_NPAGE: "pgdn", curses.KEY_HOME: "home", curses.KEY_END: "end",
    curses.KEY_ENTER: "enter", curses.KEY_BACKSPACE: "backspace", curses.KEY_DC: "backspace",
    curses.KEY_F1: "f1", curses.KEY_F3: "f3", curses.KEY_F4: "f4", curses.KEY_F6: "f6", curses.KEY_F10: "f10",
}  # fmt: skip
CHARACTERS = {"\n": "enter", "\r": "enter", "\t": "tab", "\x1b": "esc", "\x7f": "backspace", "\x08": "backspace"}


def bars() -> str:
    """Return the characters for charts: blocks where the terminal's encoding has them."""
    locale.setlocale(locale.LC_ALL, "")
    return BARS if "utf" in locale.getpreferredencoding(do_setlocale=False).lower() else PLAIN_BARS


def show(top: Top) -> None:
    """Show the screen until it is ended by a key, or by SIGINT (`KeyboardInterrupt`), SIGTERM or SIGHUP
    (`SystemExit`).
    """
    os.environ.setdefault("ESCDELAY", "25")  # else Esc acts a second after it was pressed
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    # Not `curses.wrapper`, which sets colours whatever $NO_COLOR says.
    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        _run(window, top)
    finally:
        window.keypad(False)
        curses.nocbreak()
        curses.echo()
        curses.endwin()


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run(window: Any, top: Top) -> None:
    styles = _styles()
    window.timeout(TICK_MS)
    while True:
        height, width = _size(window)
        window.erase()
        for y, line in enumerate(top.screen(width, height)):
            # The corner at the lower right cannot be written, nor what is outside of a window that was made smaller.
            with suppress(curses.error):
                try:
                    window.addstr(y, 0, line.text, styles[line.style])
                except UnicodeEncodeError:
                    window.addstr(y, 0, line.text.encode("ascii", "replace").decode(), styles[line.style])
        window.refresh()
        key = _key(window)
        if key and not top.press(key):
            return


def _size(window: Any) -> tuple[int, int]:
    """Return the lines and columns of the terminal. If they have changed, curses is told, and draws all of it again."""
    try:
        columns, lines = os.get_terminal_size()
    except OSError:
        lines = columns = 0
    if not lines or not columns:  # this terminal does not say
        lines, columns = window.getmaxyx()
    if (lines, columns) != window.getmaxyx():
        curses.resizeterm(lines, columns)
        window.clear()
    return lines, columns


def _key(window: Any) -> str:
    """Return the next key by its name; empty if none was pressed, or it is unknown."""
    try:
        found = window.get_wch()
    except curses.error:  # none within the tick
        return ""
    if found == "\x0c":  # Ctrl-L: somebody wrote over it
        window.clear()
        return ""
    if isinstance(found, int):
        return KEYS.get(found, "")
    return CHARACTERS.get(found) or (found if found.isprintable() else "")


def _styles() -> dict[str, int]:
    with suppress(curses.error):  # this terminal cannot hide it
        curses.curs_set(0)
    styles = {
        PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, BAD: curses.A_BOLD, WARN: curses.A_NORMAL,
        FAINT: curses.A_NORMAL, CHOSEN: curses.A_REVERSE,
    }  # fmt: skip
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return styles
    curses.start_color()
    curses.use_default_colors()
    for number, color in ((1, curses.COLOR_RED), (2, curses.COLOR_YELLOW), (3, curses.COLOR_CYAN)):
        curses.init_pair(number, color, -1)
    colored = {
        BAD: curses.A_BOLD | curses.color_pair(1),
        WARN: curses.color_pair(2),
        TITLE: curses.A_BOLD | curses.color_pair(3),
    }
    return styles | colored | {FAINT: curses.A_DIM}
