"""Counts the functions and files that a public verb enters: how far a reader has to walk to follow it.

Run it as `python -m tools.ways` from the project's root; with `--all` it names them. Counted are warm calls over the
memory store, each function once, comprehensions not. "Above the store" leaves out `store/`, `seams`, `instrumentation`,
`errors`, `inputs`, `retry` and `deadline`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import latchwork
from latchwork.queue import Consumer, LargeQueue, QueueConfig, QueueRegistry
from latchwork.store import MemoryStore

ROOT = str(Path(latchwork.__file__).parent)
BELOW = ("store/", "seams.py", "instrumentation.py", "errors.py", "inputs.py", "retry.py", "deadline.py")

Entered = dict[tuple[str, str], None]


def entered(call: Callable[[], Any]) -> tuple[Any, Entered]:
    """What a call returns, and the functions of the library that it entered, in order, by file and name."""
    found: Entered = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.endswith(("comp>", "expr>")):
            found[code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname] = None

    sys.setprofile(note)
    try:
        returned = call()
    finally:
        sys.setprofile(None)
    return returned, found


def above(functions: Entered) -> Entered:
    """The functions of a way that lie above the store."""
    return {one: None for one in functions if not one[0].startswith(BELOW)}


def files_of(functions: Entered) -> set[str]:
    """The files that functions are in."""
    return {file for file, _ in functions}


def ways() -> dict[str, Entered]:
    """The functions that each of these public verbs enters, by its name."""
    store = MemoryStore()
    queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1))
    large = LargeQueue.create(store, "large", 1_000)
    turns = Consumer(queue, lambda _: None, upkeep=False, prefetch=1)._turns  # noqa: SLF001 - its own way begins there
    for n in range(8):  # warm, and enough for all
        queue.publish_many([n] * 3)
        queue.receive(1, timeout=1)[0].ack()
        large.enqueue(n)
        large.enqueue_many([n] * 2)
        large.dequeue()
        turns.take()
    found: dict[str, Entered] = {}
    _, found["publish"] = entered(lambda: queue.publish(1))
    (delivery,), found["receive"] = entered(lambda: queue.receive(1, timeout=1))
    _, found["ack"] = entered(delivery.ack)
    _, found["one turn of a consumer"] = entered(turns.take)
    _, found["large queue: enqueue"] = entered(lambda: large.enqueue(1))
    _, found["large queue: dequeue"] = entered(large.dequeue)
    return found


def main() -> None:
    """Print the table."""
    print(f"{'':24}{'functions':>10}{'files':>7}{'above the store':>17}{'files':>7}")
    for name, functions in ways().items():
        upper = above(functions)
        print(f"{name:24}{len(functions):>10}{len(files_of(functions)):>7}{len(upper):>17}{len(files_of(upper)):>7}")
        for file, function in functions if "--all" in sys.argv else ():
            print(f"    {' ' if (file, function) in upper else '-'} {file} {function}")


if __name__ == "__main__":
    main()
