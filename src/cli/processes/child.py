"""A child: it runs the worker, says how it is, answers its parent's questions, and does what the parent asks for.

It drains if its parent asks, if it gets SIGTERM, and if its parent has died. It ends early only if the parent says so:
the terminal, or an init system, may send a signal to parent and children alike, and the parent hands it on as well.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...background import FailureLog
from ...errors import InvalidRequest, LatchworkError
from ...logs import Log, ends, let_end
from ...plain import one_line
from ...queue import Worker
from ...queue.sharded.consumer.in_hand import LEFT, SIZE, Noted, Notes, Stage, settle_for
from ...queue.sharded.envelope import Reason
from ...queue.sharded.upkeep.reporter import reporter_of
from ...queue.sharded.upkeep.upkeep import upkeep_of
from ...queue.sharded.workers import settling
from ...seams import DIED, SYSTEM
from ..probe import Answers
from ..serving import TEXT
from .channel import Channel

log = Log("latchwork.worker")

PULSE = 0.25
"""Seconds between two reports to the parent."""
HEED = 0.1
"""Seconds between two looks at whether it is to drain."""
LEAVE = 5.0
"""Seconds that a process has, beside the grace, to end once it drains. Then it is killed."""


class Child:
    """This process, as a child of a parent.

    given: `NUMBER:CHANNEL:MEMORY`, as the parent has put it on the command line; the last two are descriptors.
    """

    def __init__(self, given: str) -> None:
        try:
            self.number, channel, memory = map(int, given.split(":"))
            self._channel = Channel(socket.socket(fileno=channel))
            self._memory = mmap.mmap(memory, SIZE)
        except (ValueError, OSError):
            raise InvalidRequest(f"--child {given}: only for the processes that --processes starts") from None
        os.close(memory)
        os.set_inheritable(channel, False)
        self._asked = self._begins = self._tells_files = False
        self._worker: Worker | None = None
        self._answers: Answers | None = None
        self._upkeep: list[tuple[Child, str]] = []
        self._failure_log = FailureLog(SYSTEM, log)

    @property
    def name(self) -> str:
        """The name in the log."""
        return f"child {self.number}, pid {os.getpid()}"

    def begin(self) -> None:
        """Listen to the parent from now on: it may end this process before the worker is there."""
        signal.signal(signal.SIGINT, lambda *_: None)  # the parent hands it on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        SYSTEM.spawn(self._listen, "latchwork-child")

    def run(self, worker: Worker) -> bool:
        """Work until the parent asks to drain, or a signal; whether all handlers had finished."""
        notes = Notes(self._memory)
        hands = {name: notes.hand(number) for number, name in enumerate(worker.queues)}
        worker.hand_of = hands.__getitem__
        takes_part, worker.upkeep = worker.upkeep, False  # one child does it for all
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._signalled)
        self._answers = Answers(worker, own_metrics_only=True)
        self._worker, self._begins = worker, True
        at_rest = resident()
        worker.start()
        try:
            timeouts = [one.queue.config.handler_timeout.total_seconds() for one in worker.consumers.values()]
            self._channel.send(
                ready={
                    "grace": worker.grace, "queues": worker.queues, "upkeep": takes_part, "timeout": max(timeouts),
                    "worker": reporter_of(worker.registry).worker, "memory": at_rest,
                }
            )  # fmt: skip
            SYSTEM.spawn(self._pulse, "latchwork-child-pulse")
            while not self._asked:
                worker.registry.store.seams.sleep(HEED)  # on a loop the handlers go on meanwhile
        finally:
            done = worker.stop()
            for member in self._upkeep:
                upkeep_of(worker.registry).leave(member, 1.0)
            self._say(worker)  # with what failed as it ended; a parent that is stopped is waited for
            let_end()
        return done

    def _signalled(self, *_: Any) -> None:
        self._asked = True
        ends()

    # ---- the parent

    def _listen(self) -> None:
        while (documents := self._channel.received()) is not None:
            for document in documents:
                self._heed(document)
        # The parent has died.
        self._drain()
        SYSTEM.sleep((self._worker.grace if self._worker is not None else 0.0) + LEAVE)
        os._exit(1)

    def _heed(self, document: Mapping[str, Any]) -> None:
        worker = self._worker
        if "drain" in document:
            self._drain()
        elif "files" in document:
            self._tells_files = True
        elif worker is None:
            return
        elif "force" in document:
            SYSTEM.spawn(partial(_force, worker), "latchwork-child-force")
        elif "upkeep" in document:
            self._upkeep = [(self, queue) for queue in worker.queues]
            for member in self._upkeep:
                upkeep_of(worker.registry).join(member, member[1])
        elif "ask" in document:
            SYSTEM.spawn(partial(self._answer, document), "latchwork-child-answer")
        elif "carry" in document:
            counts = Counter({(queue, what): n for queue, what, n in document["carry"]})
            reporter_of(worker.registry).carry(counts)
        elif "settle" in document:
            SYSTEM.spawn(partial(self._settle, worker, document), "latchwork-child-settle")

    def _drain(self) -> None:
        if not self._begins:  # nothing has begun
            os._exit(0)
        self._asked = True
        ends()

    def _answer(self, document: Mapping[str, Any]) -> None:
        assert self._answers is not None  # noqa: S101 - it was asked once it had said that it is ready
        totals = document.get("totals")
        status, kind, body = 500, TEXT, b"it failed: see the log\n"
        try:
            status, kind, body = self._answers.answer(document["path"], None if totals is None else tuple(totals))
        except Exception as failure:  # noqa: BLE001 - such as a collector of the program; this child works all the same
            self._failure_log.record(failure, "the probe could not answer")
        self._channel.offer(answer=document["ask"], status=status, kind=kind, body=body.decode())

    # ---- what it says of itself

    def _pulse(self) -> None:
        """Tell the parent again and again. While it does not read, this thread waits with one report, and then the
        newest is next: none are kept.
        """
        worker, modules = self._worker, 0
        assert worker is not None  # noqa: S101 - it was started
        while not self._channel.is_broken:
            self._say(worker)
            if self._tells_files and modules != len(sys.modules):
                modules = len(sys.modules)
                self._channel.send(files=own_files())
            SYSTEM.sleep(PULSE)
        self._drain()  # nobody hears it any more

    def _say(self, worker: Worker) -> None:
        """Tell the parent how this process is."""
        consumers = worker.consumers
        lately = reporter_of(worker.registry).counted(consumers.values())
        self._channel.send(
            pulse={
                "takes": worker.running and not self._asked,
                "handled": sum(one.stats["handled"] for one in consumers.values()),
                "stuck": sum(one.stuck for one in consumers.values()),
                "memory": resident(),
                "died": [f"{one_line(name)} ({kind})" for name, kind in [*DIED.items()]],
                "counts": {name: (one.stats["acked"], one.concurrency) for name, one in consumers.items()},
                "lately": [[*of, n] for of, n in lately.items()],
            }
        )

    # ---- what another child has left

    def _settle(self, worker: Worker, document: Mapping[str, Any]) -> None:
        """Settle what a child that died had in hand, note that beside its last report, and tell the parent."""
        self._channel.send(settles=document["leftover"])  # first: should this child die, the next one is to know
        failed = list[list[Any]]()
        try:
            self._settle_each(worker, document, failed)
        finally:
            self._channel.send(settled=document["leftover"], counts=failed)

    def _settle_each(self, worker: Worker, document: Mapping[str, Any], failures: list[list[Any]]) -> None:
        noted = [Noted(queue, Stage(stage), *rest) for queue, stage, *rest in document["settle"]]
        for number, name in enumerate(worker.queues):
            of_queue, queue = [one for one in noted if one.queue == number], worker.consumers[name].queue
            try:
                told = settle_for(queue, of_queue, document["why"], counts=document["counts"])
                if document["worker"] is not None and not told[LEFT]:
                    queue.store.repeat_many([settling(queue, document["worker"])])
            except LatchworkError as failure:
                log.warning("%r: what %s had in hand is left to the sweep: %s", name, document["of"], failure)
                continue
            if told["failed"]:
                failures += [[name, what, told["failed"]] for what in ("failed", f"failed_{Reason.SWEPT.value}")]
            if of_queue:
                counts = ", ".join(f"{what}: {count}" for what, count in told.items() if count)
                log.info("%r: of what %s had in hand: %s", name, document["of"], counts or "all was settled")


def _force(worker: Worker) -> None:
    worker.stop(0)  # the other call of it, which waits for handlers, has nothing left to wait for


def resident() -> int:
    """Return bytes of memory that this process has; on systems without /proc, the most that it has had."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def own_files() -> list[str]:
    """Return the files of the modules that are loaded, but for installed ones and the standard library's."""
    places = sysconfig.get_paths()
    installed = [Path(places[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    found = {Path(file).resolve() for file in files if isinstance(file, str)}
    return sorted(str(file) for file in found if not any(file.is_relative_to(place) for place in installed))
