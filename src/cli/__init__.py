"""The `latchwork` command: for a person on call, and for somebody who tries the package.

    latchwork --store sqlite:/tmp/shop.db latch create nightly --client shop --count 3

Global options may stand anywhere before `--`, and before the first word of a command that is to be run. Exit codes: 0
done, 1 failed, 2 usage, 3 not found, 4 timed out, 130 interrupted; one that runs a command exits with its code, or, as
a shell, with 127 where there is no such program and with 126 where it cannot be run.
With `--json` a failure is a document on stdout too, `{"error": code, "message": text}`, where no other one is printed.
Run it as `latchwork` or as `python -m latchwork`.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ..errors import Corrupt, InvalidRequest, LatchworkError, NotFound
from ..plain import one_line
from .answer import Answer
from .exit_codes import FAILED, INTERRUPTED, NOT_FOUND, TIMED_OUT, USAGE
from .interrupts import pass_over
from .missing_packages import without_extra

GLOBAL_FLAGS = {"--json", "-v", "-vv", "--verbose"}
GLOBAL_OPTIONS = {"--store"}
RUNNERS = {
    ("lock", "run"), ("leader", "run"), ("queue", "consume"), ("semaphore", "run"), ("group", "run"),
    ("rwlock", "read"), ("rwlock", "write"),
}  # fmt: skip
"""Commands whose one argument, a name, is followed by a command to run."""
VALUED = {"--store", "--client", "--farm", "--lease", "--max", "--timeout", "--permits", "-n", "--weight", "--grace",
          "--as", "--meta", "--farm-store", "--zookeeper", "--prefer", "--resource"}  # fmt: skip
"""Their options that take the next word."""


def hoist(arguments: list[str]) -> list[str]:
    """Return the arguments with the global options first, so that they may be typed anywhere before a command to run.

    Such a command is left as it is, and put behind a `--` if there is none.
    """
    end = _own(arguments)
    mine, rest = arguments[:end], arguments[end:]
    if rest and rest[0] != "--":
        rest.insert(0, "--")
    front: list[str] = []
    others: list[str] = []
    while mine:
        word = mine.pop(0)
        if word in GLOBAL_FLAGS or (word.partition("=")[0] in GLOBAL_OPTIONS and "=" in word):
            front.append(word)
        elif word in GLOBAL_OPTIONS and mine:
            front += [word, mine.pop(0)]
        else:
            others.append(word)
    return [*front, *others, *rest]


def _own(arguments: list[str]) -> int:
    """Return how many of the arguments are Latchwork's: those before a `--`, or before the first word of a command to
    run.
    """
    plain: list[str] = []
    is_value = False
    for at, word in enumerate(arguments):
        if word == "--":
            return at
        if not is_value and not word.startswith("-"):
            plain.append(word)
            if len(plain) == 4 and (plain[0], plain[1]) in RUNNERS:
                return at
        is_value = not is_value and word in VALUED
    return len(arguments)


def asks_for_json(hoisted: list[str]) -> bool:
    """Whether `--json` is among the global options, which come first."""
    return "--json" in hoisted[: hoisted.index("--")] if "--" in hoisted else "--json" in hoisted


def exit_code(failure: LatchworkError) -> int:
    """Return the exit code for this kind of failure."""
    if "document" in failure.details:  # several messages, of which some failed, perhaps for different reasons
        return FAILED
    if isinstance(failure, NotFound):
        return NOT_FOUND
    if isinstance(failure, TimeoutError):
        return TIMED_OUT
    if hasattr(failure, "exit_code"):  # a command that cannot be run
        return int(failure.exit_code)
    # A damaged record may raise an invalid request too (`BinMismatch`): that is no usage error.
    return USAGE if isinstance(failure, InvalidRequest) and not isinstance(failure, Corrupt) else FAILED


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    atexit.unregister(_ignore_interrupts)
    atexit.register(_ignore_interrupts)  # before all others are, so that it comes after them
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # escape what the terminal's or the pipe's encoding does not have
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.captureWarnings(capture=True)
    words = hoist(sys.argv[1:] if arguments is None else arguments)
    answer = Answer(is_json=asks_for_json(words))
    try:
        try:
            code = _code_of(words, answer)
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code == INTERRUPTED:
            pass_over()
            _say("interrupted")
            answer.give_up("INTERRUPTED", "interrupted")
            sys.stdout.flush()
    except OSError as failure:
        if not isinstance(failure, BrokenPipeError):  # the reader of the output has closed it
            _say(f"input or output failed: {failure}")
        sys.stdout = _nowhere("w")  # the rest of the output would fail again at exit
        code = FAILED
    sys.exit(code)


def _code_of(words: list[str], answer: Answer) -> int:
    """Run the command; return its exit code. Print a failure on stderr, and with `--json` as a document too."""
    gc.disable()  # until the command is loaded: to look for garbage in that took a third of the time
    try:
        return _run(words, answer)
    except LatchworkError as failure:
        _say(f"{failure} [{failure.code}]")
        answer.give_up(failure.code, str(failure), **failure.details.get("document", {}))
        return exit_code(failure)
    finally:
        gc.enable()


def _ignore_interrupts() -> None:
    """Let no Ctrl-C change how a process ends that has done its work: the signal would kill it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(words: list[str], answer: Answer) -> int:
    try:
        from typer import Abort, TyperException  # noqa: PLC0415 - typer and rich are an extra

        from .app import whole  # noqa: PLC0415 - as above
    except ImportError as failure:
        without_extra(failure)
    try:
        return whole()(words, prog_name="latchwork", standalone_mode=False, obj=answer) or 0
    except TyperException as failure:
        wrong: Any = failure  # typer's public type does not have the `show` of its errors
        usage = io.StringIO()
        wrong.show(file=usage)
        print(*map(one_line, usage.getvalue().splitlines()), sep="\n", file=sys.stderr)  # noqa: T201 - as above
        answer.give_up("USAGE", wrong.format_message())
        return failure.exit_code
    except Abort:
        _say("aborted")
        return FAILED


def _say(text: str) -> None:
    print(f"latchwork: {one_line(text)}", file=sys.stderr)  # noqa: T201 - the command's own message


def _open_closed() -> None:
    """Open standard streams that were closed (`>&-`) on the null device; else a file that is opened later would get
    their output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))


def _nowhere(mode: str) -> Any:
    return Path(os.devnull).open(mode, encoding="utf-8")
