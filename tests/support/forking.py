"""A fork in the middle of what another thread does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def held_by_another_thread(*locks: Any) -> Iterator[None]:
    """Another thread holds these locks; within the block a child can be forked that has nobody to release them."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(60)

    another = threading.Thread(target=hold)
    another.start()
    try:
        assert held.wait(60)
        yield
    finally:
        over.set()
        another.join(60)
