"""Tasks that fail, so that exactly once can be seen."""

from __future__ import annotations

from pyspark import TaskContext


def fail_some(remainder: int, when: str) -> None:
    """Make the first attempt of every fourth partition fail here."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() % 4 == remainder:
        raise RuntimeError(f"partition {context.partitionId()} is made to fail {when}")
