"""Follow-ups of batches that do not come: why, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import LatchworkError
from ..observe.findings import PROBLEM, Finding
from ..observe.findings.words import of_client
from ..observe.snapshot import Snapshot
from ..plain import word
from ..queue import ShardedQueue
from ..queue.sharded.batches.records import not_followed

RESTORE = "restore this record from a copy, or delete it while no process that uses it runs"


def why_refused(target: str, active: bool | None, there: str) -> tuple[str, str] | None:
    """Return why a queue takes no follow-up, and the remedy; None if it takes messages.

    active: whether it is active; None = there is no such queue.
    there: the options of a command that name its client.
    """
    if active is None:
        return f"there is no queue {target}", f"latchwork queue create {word(target)} {there}"
    if not active:
        return f"queue {target} is deactivated", f"latchwork queue activate {word(target)} {there}"
    return None


def missing_follow_ups(taken: Snapshot, queues: Sequence[ShardedQueue]) -> Iterator[Finding]:
    """Yield the batches that are done, and whose follow-up its queue refuses, each with the reason. One call, and one
    for each 1,000 batches that have not ended.

    queues: of the client, as it was taken.
    """
    client, active = taken.client, {queue.name: queue.live.active for queue in taken.queues}
    there = of_client(client, taken.farm)
    for records, name, then in not_followed([queue.batches for queue in queues if not queue.reader]):
        queue = records.queue
        if isinstance(then, LatchworkError):
            what = f"batch {name} of queue {queue} of {client}" if name else f"batches of queue {queue} of {client}"
            yield Finding(PROBLEM, f"{what}: {then}", RESTORE, "", client, (queue,))
            continue
        target = then.get("queue") if isinstance(then, dict) and "data" in then else None
        why: tuple[str, str] | None
        if not isinstance(target, str):
            why = "its record does not say what it is", "publish that message yourself"
        elif target in taken.unreadable:
            why = f"the record of queue {target} is damaged", RESTORE
        else:
            why = why_refused(target, active.get(target), there)
        if why is not None:  # else it is on its way
            what = f"batch {name} of queue {queue} of {client} is done, and its follow-up is not published"
            yield Finding(PROBLEM, f"{what}: {why[0]}", why[1], "stranded", client, (queue,))
