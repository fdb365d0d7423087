"""`latchwork queue pause|resume|scale`: changes on which each worker acts, and the wait until all do."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from ...deadline import Deadline
from ...observe.findings.finding import ACTS_WITHIN
from ...observe.findings.words import listed, of_client
from ...plain import counted, exact_time, shown_time, word
from ...queue import ShardedQueue
from ...queue.sharded.workers import WorkerReport, short_name
from ...retry import Poll, outlive
from ..audit import noted, person
from ..exit_codes import TIMED_OUT
from ..options import Client, Farm
from ..session import Session, note
from .arguments import Name, queue_of
from .facts import paused

ACT_LOOKS = Poll(low=0.05, high=0.25)
"""The pauses between two looks of `pause`, `resume` and `scale` at the reports of the workers."""
WITHIN = 3.0
"""Seconds after which each worker that lives acts on a change."""
ActsWithin = Annotated[
    float,
    typer.Option("--timeout", min=0, max=86_400, help="seconds to wait until the workers act on it; 0 = do not wait"),
]


def pause(
    context: typer.Context, name: Name, client: Client, timeout: ActsWithin = ACTS_WITHIN, farm: Farm = None
) -> None:
    """Stop a queue: none of its handlers begins, in any worker.

    Its groups go on, and the command names them: `queue pause QUEUE@GROUP` stops one. The command waits until the
    workers act on it: at most 3 s, while they live. Handlers that have begun go on to their end. Messages that wait go
    on expiring. Exit code 4 if a worker has not acted on it within --timeout; the queue is paused all the same. If the
    queue is paused already, it stays paused by the same person, since the same time.

    Example: latchwork queue pause orders --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    done = f"paused {name}"
    if queue.concurrency:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the lines below say it
            with noted(session, "pause", client, farm, name, before=counted(queue.concurrency, "thread")):
                queue.pause(by=person())
    else:
        done = f"{name} is paused already: {paused(queue, session.store.seams.wall())}"
    ready = sum(state.loaded - state.fired for state in queue.pointers.states())
    waiting = f"{counted(ready, 'ready message')} waiting" if ready else "nothing ready"
    life = exact_time(queue.config.message_expiry)
    at_work = [] if queue.reader else [group.name for group in queue.groups() if group.concurrency]
    if at_work:
        stop = f"latchwork queue pause {word(at_work[0])} {of_client(client, queue.registry.farm_id)}"
        note(f"its groups go on: {listed(at_work)}; each is paused by itself: {stop}")
    _settle(session, queue, timeout, "the pause", f"{done}; {waiting}; messages go on expiring, each after {life}")


def resume(
    context: typer.Context, name: Name, client: Client, timeout: ActsWithin = ACTS_WITHIN, farm: Farm = None
) -> None:
    """Start the consumers of a paused queue again. They have as many threads as before.

    The command waits until the workers act on it, as `queue pause` does. A queue that is not paused stays as it is.

    Example: latchwork queue resume orders --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    done = f"{name} was not paused"
    if not queue.concurrency:
        with noted(session, "resume", client, farm, name, before=paused(queue, session.store.seams.wall()) or ""):
            queue.resume(by=person())
        done = f"resumed {name}"
    threads = counted(queue.concurrency, "worker thread")
    _settle(session, queue, timeout, "this", f"{done}: {threads} in each consumer process")


def scale(
    context: typer.Context,
    name: Name,
    n: Annotated[int, typer.Argument(help="worker threads, 0 to 100")],
    client: Client,
    timeout: ActsWithin = ACTS_WITHIN,
    farm: Farm = None,
) -> None:
    """Set the number of worker threads in each consumer process.

    The command waits until the workers act on it, as `queue pause` does. A paused queue works again.

    Example: latchwork queue scale orders 8 --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    was = queue.live
    with noted(session, "scale", client, farm, name, before=counted(was.concurrency, "thread")) as deed:
        queue.scale(n, by=person())
        deed.after = counted(n, "thread")
    resumed = (
        f"; it was paused by {was.changed_by or 'its maker'}, and works again" if n and not was.concurrency else ""
    )
    change = "the number of threads"
    _settle(session, queue, timeout, change, f"{name}: threads in each consumer process: {n}{resumed}")


def _settle(session: Session, queue: ShardedQueue, timeout: float, change: str, done: str) -> None:
    """Wait until all workers act on the settings that were just changed; print what was done, and who has not acted.

    change: the stored change, for a person who interrupts the wait.
    """
    seams, changed = session.store.seams, queue.live.changed
    began = seams.monotonic()
    workers: list[WorkerReport] = []

    def late() -> list[WorkerReport]:
        workers[:] = [worker for worker in queue.workers() if not worker.is_silent]
        return [worker for worker in workers if worker.acts_on < changed]

    if timeout:
        try:
            with Deadline(seams, timeout) as deadline:
                ACT_LOOKS.until(seams, lambda: outlive(seams, deadline, late) == [] or None, timeout=deadline.left())
        except KeyboardInterrupt:
            missing = [worker.worker for worker in workers if worker.acts_on < changed]
            act = f"not yet: {', '.join(missing)}" if missing else "which workers act on it was not asked yet"
            note(f"{done}. {change[0].upper()}{change[1:]} is stored, and all workers will act on it; {act}")
            raise
    else:
        late()
    silent = [worker for worker in workers if worker.acts_on < changed]
    running = sum(worker.running for worker in workers if worker.acts_on >= changed)
    within = f"within {seams.monotonic() - began:.1f} s"
    acting = f"{len(workers) - len(silent)} of {counted(len(workers), 'worker')} acted on it, {within}"
    if silent and not timeout:
        act = "worker acts" if len(silent) == 1 else "workers act"
        acting = f"{len(silent)} {act} on it within {WITHIN:g} s; this was not waited for"
    lines = [done, acting if workers else "no worker runs"]
    if running and not queue.concurrency:
        lines.append(f"{counted(running, 'handler')} had begun, and may go on to the end")
    lines += [
        f"{short_name(worker.worker)} keeps its own number of threads, {worker.threads}: its program sets "
        "`concurrency` or `weights`"
        for worker in workers
        if worker.acts_on >= changed and queue.concurrency and worker.threads != queue.concurrency
    ]
    lines += [
        f"not yet: {worker.worker}, which last reported {shown_time(worker.ago)} ago: it hangs, was killed, or is "
        "of an earlier version"
        for worker in silent
        if timeout
    ]
    session.say(
        *lines, queue=queue.name, consumers=queue.concurrency, workers=[worker.worker for worker in workers],
        not_yet=[worker.worker for worker in silent], running=running,
    )  # fmt: skip
    if silent and timeout:
        raise typer.Exit(TIMED_OUT)
