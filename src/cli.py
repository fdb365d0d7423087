"""The `latchwork` command: what a person on call, or one who tries the package, reaches for.

    latchwork --store sqlite:/tmp/shop.db latch create nightly --client shop --count 3

Global options may stand anywhere before `--`. Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 timed out. With
`--json` a failure is a document on stdout too: `{"error": code, "message": text}`.
Run it as `latchwork` or as `python -m latchwork.cli`.
"""

from __future__ import annotations

import json
import logging
import sys

from .errors import InvalidRequest, LatchworkError, NotFound

FAILED, USAGE, NOT_FOUND, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 130
GLOBAL_FLAGS = {"--json", "-v", "-vv", "--verbose"}
GLOBAL_OPTIONS = {"--store"}


def hoist(arguments: list[str]) -> list[str]:
    """The arguments with the global options first, so that they may be typed anywhere before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    mine, rest = arguments[:end], arguments[end:]
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


def asks_for_json(hoisted: list[str]) -> bool:
    """Whether `--json` is among the global options, which come first."""
    return "--json" in hoisted[: hoisted.index("--")] if "--" in hoisted else "--json" in hoisted


def exit_code(failure: LatchworkError) -> int:
    """The exit code that tells a script what kind of failure it was."""
    if isinstance(failure, NotFound):
        return NOT_FOUND
    if isinstance(failure, TimeoutError):
        return TIMED_OUT
    return USAGE if isinstance(failure, InvalidRequest) else FAILED


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    try:
        from .commands import app  # noqa: PLC0415 - typer and rich are an extra
    except ImportError as failure:
        sys.exit(f"latchwork: {failure.name} is not installed; install the extra: pip install 'latchwork[cli]'")
    logging.captureWarnings(capture=True)
    words = hoist(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="latchwork")
    except LatchworkError as failure:
        _say(f"{failure} [{failure.code}]")
        if asks_for_json(words):
            print(json.dumps({"error": failure.code, "message": str(failure)}))  # noqa: T201 - the command's output
        sys.exit(exit_code(failure))
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _say("interrupted")
        raise


def _say(text: str) -> None:
    print(f"latchwork: {text}", file=sys.stderr)  # noqa: T201 - the command's own message


if __name__ == "__main__":
    main()
