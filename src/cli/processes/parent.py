"""The parent: it starts the children, replaces those that end, and drains them.

It does not load the program. One thread does all, and waits for no child: it hears from each four times a second, and
kills what does not end in time. What a child had in hand that was killed is settled by another child.
"""

from __future__ import annotations

import mmap
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...logs import Log
from ...plain import counted
from ...queue.sharded.consumer.in_hand import SIZE, Noted, Stage, noted_in
from ...queue.sharded.consumer.signals import Signals
from ...queue.sharded.workers import WINDOW
from ...retry import Poll
from ...seams import SYSTEM
from ..serving import Answer
from .channel import PATIENCE, Channel
from .child import LEAVE
from .files import Files
from .sizes import shown_size

log = Log("latchwork.worker")

LOOK = 0.1
"""Seconds between two looks at signals, and at children that have ended."""
BACKOFF = Poll(low=0.5, high=30.0, factor=2.0, jitter=0.2)
"""Pauses before a child is replaced that has died, or could not start."""
LIVED = 60.0
"""Seconds after which a child that dies is replaced as soon as the first one."""
SPREAD = 0.1
"""By how much the limit of messages differs from child to child, so that they do not all end at once."""
ROUND = 1.0
"""Seconds that a round of the parent counts at most: if it takes longer, the parent was stopped, or had to wait, and
could hear nobody."""
SILENT = 60.0
"""Seconds, beside the longest `handler_timeout`, after which a child that says nothing is killed: a handler keeps the
interpreter busy, and nothing in the child can end it."""


@dataclass(frozen=True)
class Plan:
    """What to run, and when to replace a child.

    command: the words of a child's command line, behind the interpreter.
    max_messages, max_memory: messages, and bytes, after which a child is replaced; None = no limit.
    reload: whether to start again when a file of the program changes.
    """

    command: Sequence[str]
    processes: int = 1
    max_messages: int | None = None
    max_memory: int | None = None
    reload: bool = False


@dataclass(eq=False)
class Leftover:
    """What a child that has ended had in hand, for another child to settle.

    number: by which the other child speaks of it.
    in_hand: the messages, and the claims that were under way.
    why: how it has ended, as the messages' error.
    counts: whether attempts that had begun count.
    of, worker: its name in the log, and among the workers; None = it has never worked.
    has_begun: whether a child has begun with it.
    """

    number: int
    in_hand: list[Noted]
    why: str
    counts: bool
    of: str
    worker: str | None
    has_begun: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The request to settle it."""
        return {
            "settle": [list(one) for one in self.in_hand], "leftover": self.number, "why": self.why,
            "counts": self.counts, "of": self.of, "worker": self.worker,
        }  # fmt: skip

    def again(self) -> Leftover:
        """Return what is to be done by another child, as the one that was asked has ended too.

        Each message is settled in the name of its delivery, so that it may be asked for twice. Slots without a message
        may be done with by now where that child had begun: these are left to the sweep.
        """
        if self.has_begun:
            self.in_hand = [one for one in self.in_hand if one.stage not in (Stage.ASKED, Stage.AWAITED)]
        return self


@dataclass(eq=False)
class Child:
    """A child that runs.

    memory: where it notes what it has in hand.
    most: the messages after which it is replaced.
    started: when it was started (monotonic).
    heard: when it said something last (seconds that the parent has listened).
    ready: what it said once it worked; None = it has not started.
    leaves: why it drains; None = it does not.
    until: when it is killed (seconds that the parent has listened).
    is_too_big: whether it had too much memory before it had handled anything.
    carries: the counts of children that have ended, which it reports with its own; None = it was given none.
    settles: what it was asked to settle, and has not answered.
    """

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    memory: mmap.mmap
    most: float
    started: float
    heard: float
    ready: Mapping[str, Any] | None = None
    pulse: Mapping[str, Any] = field(default_factory=dict)
    leaves: str | None = None
    until: float = float("inf")
    is_killed: bool = False
    is_too_big: bool = False
    does_upkeep: bool = False
    carries: Counter[tuple[str, str]] | None = None
    settles: dict[int, Leftover] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in the log."""
        return f"child {self.number} (pid {self.process.pid})"

    @property
    def works(self) -> bool:
        """Whether it takes messages, and can be asked for something."""
        takes = self.ready is not None and self.leaves is None and bool(self.pulse.get("takes"))
        return takes and not self.channel.is_broken and not self.is_killed


@dataclass
class Seat:
    """The place of a child.

    failures: how often in a row its child has died early, or could not start.
    due: when the next one is to be started (monotonic).
    """

    number: int
    child: Child | None = None
    failures: int = 0
    due: float = 0.0


class Parent:
    """The process that runs a plan. `run` is called once, in the main thread; `ask` and the figures are for others."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seats = [Seat(number) for number in range(1, plan.processes + 1)]
        self._seams = SYSTEM
        self._signals = Signals(lambda: False)
        self._selector = selectors.DefaultSelector()
        self._looked, self._listened = self._seams.monotonic(), 0.0
        """When it began to listen last (monotonic), and the seconds in which it has listened so far. Children are
        judged by the second: what they say while the parent is stopped waits until it listens again.
        """
        self._files = Files() if plan.reload else None
        self._proved = False
        """Whether a child has started since the program was loaded last: the first one starts alone."""
        self._code: int | None = None
        """The exit code, once it is to end."""
        self._forced = self._waits_for_change = False
        self._left: list[Leftover] = []
        """What dead children had in hand, and nobody was asked yet to settle."""
        self._last_number = 0
        self._past: Counter[str] = Counter()
        """Messages that former children have acknowledged, by queue."""
        self._lately: deque[tuple[float, Counter[tuple[str, str]]]] = deque()
        """What children that ended in the last minute had counted, and what failed as they ended."""
        self._questions: dict[int, tuple[Any, list[Answer]]] = {}
        self._numbers = count(1)
        """Of questions, which several threads ask at once."""

    # ---- life

    def run(self) -> int:
        """Run the children until a signal; return the exit code: 0 if all handlers had finished."""
        with self._signals:
            try:
                while self._code is None or self._children():
                    self._listen()
                    self._heed_signals()  # first: it may be what has ended a child
                    self._reap()
                    self._judge()
                    self._share()
                    self._fill()
            finally:  # also after a defect: none is left behind
                for child in self._children():
                    child.process.kill()
                    child.process.wait()
        return self._code

    def _children(self) -> list[Child]:
        return [seat.child for seat in self.seats if seat.child is not None]

    def _listen(self) -> None:
        """Hear what the children say, or wait a moment."""
        now = self._seams.monotonic()
        self._listened, self._looked = self._listened + min(now - self._looked, ROUND), now
        if not self._selector.get_map():
            self._seams.sleep(LOOK)
            return
        for key, _ in self._selector.select(LOOK):
            child: Child = key.data
            documents = child.channel.received()
            if documents is None:
                self._selector.unregister(child.channel)
                continue
            child.heard = self._listened
            for document in documents:
                self._hear(child, document)

    def _hear(self, child: Child, document: Mapping[str, Any]) -> None:
        if "pulse" in document:
            child.pulse = document["pulse"]
        elif "settles" in document:
            child.settles[document["settles"]].has_begun = True
        elif "settled" in document:
            child.settles.pop(document["settled"])
            self._lately.append((self._seams.monotonic(), _counts(document["counts"])))
        elif "ready" in document:
            child.ready, self._proved = document["ready"], True
            log.info("%s works, %.1f s after its start", child.name, self._seams.monotonic() - child.started)
        elif "files" in document and self._files is not None:
            self._files.watch(document["files"])
        elif "answer" in document:
            event, answers = self._questions.get(document["answer"], (None, []))
            if event is not None:
                answers.append((document["status"], document["kind"], document["body"].encode()))
                event.set()

    def _heed_signals(self) -> None:
        if self._signals.drains and self._code is None:
            self._end(0, "the parent was told to end")
        if self._signals.forced and not self._forced:
            self._forced = True
            log.warning("the parent was told again to end: the children wait for no handler")
            for child in self._children():
                child.channel.send(force=True)
                child.until = min(child.until, self._listened + LEAVE)

    def _end(self, code: int, why: str) -> None:
        self._code = code
        for child in self._children():
            self._drain(child, why)

    # ---- children that start

    def _fill(self) -> None:
        """Start the children that are due: one alone, until it has shown that the program can be loaded."""
        if self._code is not None or self._waits_for_change:
            return
        now = self._seams.monotonic()
        for seat in self.seats:
            if seat.child is None and seat.due <= now and (self._proved or not self._children()):
                try:
                    seat.child = self._start(seat.number)
                except OSError as failure:  # no memory, processes or files are left: the other children go on
                    if not self._proved:
                        raise
                    self._could_not_make(seat, str(failure))

    def _could_not_make(self, seat: Seat, why: str) -> None:
        seat.failures += 1
        pause = BACKOFF.pause(seat.failures, self._seams)
        seat.due = self._seams.monotonic() + pause
        log.error("child %d: no process could be started (%s); again in %.1f s", seat.number, why, pause)

    def _start(self, number: int) -> Child:
        """Start a child. Raises `OSError`, and leaves nothing then."""
        if self._files is not None:
            self._files.begin()
        ours, theirs = socket.socketpair()
        try:
            notes = _shared_memory()
            try:
                memory = mmap.mmap(notes, SIZE)
                process = self._spawned(f"--child={number}:{theirs.fileno()}:{notes}", [theirs.fileno(), notes])
            finally:
                os.close(notes)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        now, most = self._seams.monotonic(), float("inf")
        if self.plan.max_messages is not None:
            most = self.plan.max_messages * self._seams.uniform(1.0, 1.0 + SPREAD)
        child = Child(number, process, Channel(ours, PATIENCE), memory, most, now, self._listened)
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        if self.plan.reload:
            child.channel.send(files=True)
        return child

    def _spawned(self, given: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        # A Ctrl-C reaches the child too, which is not prepared for it until it has begun.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(  # noqa: S603 - this very Python, and this very command
                [sys.executable, "-m", "latchwork", *self.plan.command, given],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # ---- children that end

    def _reap(self) -> None:
        for seat in self.seats:
            child = seat.child
            if child is None or child.process.poll() is None:
                continue
            self._hear_the_last(child)
            with suppress(KeyError, ValueError):  # its end was heard
                self._selector.unregister(child.channel)
            seat.child = None
            self._ended(seat, child)
            child.channel.close()
            child.memory.close()

    def _hear_the_last(self, child: Child) -> None:
        """Hear what a child that has ended had said before; a process that it has forked may still be there."""
        while select.select([child.channel], [], [], 0)[0]:
            documents = child.channel.received()
            if documents is None:
                return
            for document in documents:  # none yet, if a part of a long one has come
                self._hear(child, document)

    def _ended(self, seat: Seat, child: Child) -> None:
        """Take note of how a child has ended, and see to what it had in hand."""
        for queue, (acked, _) in child.pulse.get("counts", {}).items():
            self._past[queue] += acked
        self._lately.append((self._seams.monotonic(), _counts(child.pulse.get("lately", ()))))
        code, now = child.process.returncode, self._seams.monotonic()
        in_hand = noted_in(child.memory)
        is_well = code in (0, 1) and child.leaves is not None and not child.is_killed
        why = "" if is_well else f"its process, {child.name}, {_how(child)}"
        left = [one.again() for one in child.settles.values()]
        if in_hand or (why and child.ready):
            self._last_number += 1
            worker = (child.ready or {}).get("worker")
            how, counts = why or "its process ended", child.leaves is None
            left.append(Leftover(self._last_number, in_hand, how, counts, child.name, worker))
        if self._code is not None:
            # One that has not begun cuts no work, however it ends: an init system may signal parent and children alike.
            has_begun = child.ready is not None or in_hand
            if code > 0 or (has_begun and not is_well):
                self._code = self._code or 1
            if messages := sum(len(one.in_hand) for one in left):
                log.warning("%s: %s are left to the sweep", why or child.name, counted(messages, "message"))
            return
        self._left += left
        if is_well and not child.is_too_big:
            seat.failures, seat.due = 0, now
            log.info("%s has ended (%s); another starts", child.name, child.leaves)
            return
        if child.ready is None and not self._proved:
            self._could_not_start(child)
            return
        seat.failures = 1 if child.ready is not None and now >= child.started + LIVED else seat.failures + 1
        pause = BACKOFF.pause(seat.failures, self._seams)
        seat.due = now + pause
        if is_well:
            remedy = "set it higher, or let the program need less"
            log.error("%s has ended (%s): %s; another starts in %.1f s", child.name, child.leaves, remedy, pause)
            return
        held = f", with {counted(len(in_hand), 'message')} in hand" if in_hand else ""
        when = "before it worked" if child.ready is None else f"after {now - child.started:.0f} s"
        log.error("%s %s, %s%s; another starts in %.1f s", child.name, _how(child), when, held, pause)

    def _could_not_start(self, child: Child) -> None:
        """End with the exit code of the first child, which has said why on stderr; or wait for a change."""
        if self._files is None:
            code = child.process.returncode
            log.error("%s could not start: it %s", child.name, _how(child))
            self._code = code if code > 0 else 128 - code if code < 0 else 1
            return
        self._files.watch_folder()
        log.error("%s could not start: it %s; waiting until a file changes", child.name, _how(child))
        self._waits_for_change = True

    # ---- children that are to end

    def _judge(self) -> None:
        """Drain the children that are to be replaced, and kill those that do not end."""
        now = self._listened  # what each child had said by then was heard
        if self._files is not None and self._code is None and (changed := self._files.changed(self._looked)):
            self._reload(changed)
        for child in self._children():
            if child.is_killed:  # it ends, once the kernel lets it
                continue
            if child.leaves is None:
                why = self._why_too_big(child)
                child.is_too_big = why is not None
                why = why or self._why_replaced(child)
                if why is not None:
                    self._drain(child, why)
                elif now >= child.heard + SILENT + (child.ready or {}).get("timeout", float("inf")):
                    self._kill(child, f"said nothing for {now - child.heard:.0f} s")
            elif now >= child.until:
                self._kill(child, "did not end in time")

    def _why_too_big(self, child: Child) -> str | None:
        """Return that a child was over the limit of memory before it had handled anything, as the next one will be;
        None if it was not.
        """
        limit, said = self.plan.max_memory, (child.ready, child.pulse)
        memory = max((one["memory"] for one in said if one and not one.get("handled")), default=0)
        if limit is None or memory <= limit:
            return None
        had, most = shown_size(memory), shown_size(limit)
        return f"it had {had} of memory before it handled a message, and --max-memory is {most}"

    def _why_replaced(self, child: Child) -> str | None:
        """Return why a child is to be replaced; None if it is not."""
        pulse = child.pulse
        if not pulse:
            return None
        limit = float("inf") if self.plan.max_memory is None else self.plan.max_memory
        reasons = (
            (not pulse["takes"], "it got a signal"),
            (pulse["stuck"], "a handler ran longer than the handler_timeout of its queue, and has not returned"),
            (pulse["died"], f"a thread was ended by an error: {', '.join(pulse['died'])}"),
            (pulse["handled"] >= child.most, f"it has handled {counted(pulse['handled'], 'message')}"),
            (pulse["memory"] > limit, f"it has {shown_size(pulse['memory'])} of memory"),
        )
        return next((why for holds, why in reasons if holds), None)

    def _drain(self, child: Child, why: str) -> None:
        if child.leaves is not None:
            return
        child.leaves = why
        grace = (child.ready or {}).get("grace", 0.0)
        child.until = self._listened + grace + LEAVE
        child.does_upkeep = False
        if not child.channel.send(drain=True):
            child.process.terminate()  # which it takes as the same
        log.info("%s drains: %s", child.name, why)

    def _kill(self, child: Child, why: str) -> None:
        log.error("%s %s: it is killed", child.name, why)
        child.is_killed = True
        child.process.kill()

    def _reload(self, changed: str) -> None:
        log.info("%s has changed: the program is loaded again", changed)
        self._proved = self._waits_for_change = False
        for seat in self.seats:
            seat.failures, seat.due = 0, 0.0
            if seat.child is not None:
                self._drain(seat.child, "the program has changed")

    # ---- what one child does for all

    def _share(self) -> None:
        """Give the upkeep to one child that works, and what dead children had in hand."""
        at_work = [child for child in self._children() if child.works]
        if not at_work:
            return
        takes_part = at_work[0].ready is not None and at_work[0].ready["upkeep"]
        if takes_part and not any(child.does_upkeep for child in at_work):
            at_work[0].does_upkeep = at_work[0].channel.send(upkeep=True)
        while self._left and at_work[0].channel.send(**self._left[0].document):
            leftover = self._left.pop(0)
            at_work[0].settles[leftover.number] = leftover  # until it is done: this child may be dead, not known to be
        self._share_counts(at_work)

    def _share_counts(self, at_work: Sequence[Child]) -> None:
        """Let one child report what was counted in children that have ended: their own reports go with them."""
        while self._lately and self._lately[0][0] <= self._seams.monotonic() - WINDOW:
            self._lately.popleft()
        counts = sum((counts for _, counts in self._lately), Counter[tuple[str, str]]())
        carrier = next((child for child in at_work if child.carries is not None), at_work[0])
        rows = [[*of, n] for of, n in counts.items()]
        if counts != (carrier.carries or Counter()) and carrier.channel.send(carry=rows):
            carrier.carries = counts

    # ---- for the probe, in its threads

    def at_work(self) -> list[Child]:
        """Return the children that take messages; first the one that does the upkeep."""
        return sorted((one for one in self._children() if one.works), key=lambda child: not child.does_upkeep)

    def totals(self, queue: str) -> tuple[int, int]:
        """Return the messages of a queue that were acknowledged, and the threads for it now, in all children."""
        counts = [child.pulse.get("counts", {}).get(queue, (0, 0)) for child in self._children()]
        return self._past[queue] + sum(acked for acked, _ in counts), sum(threads for _, threads in counts)

    def ask(
        self, children: Sequence[Child], path: str, timeout: float, totals: tuple[int, int] | None = None
    ) -> dict[Child, Answer]:
        """Return the answers of these children for a path: of those that answer within `timeout` seconds."""
        end, asked = self._seams.monotonic() + timeout, dict[Child, int]()
        for child in children:
            number = asked[child] = next(self._numbers)
            self._questions[number] = (self._seams.event(), [])
            child.channel.offer(ask=number, path=path, totals=totals)
        found: dict[Child, Answer] = {}
        for child, number in asked.items():
            event, answers = self._questions[number]
            event.wait(max(0.0, end - self._seams.monotonic()))
            del self._questions[number]
            if answers:
                found[child] = answers[0]
        return found

    def silent(self, after: float) -> list[str]:
        """Return the children, by name, that have started and not said anything for this number of seconds."""
        now = self._listened + self._seams.monotonic() - self._looked  # the parent itself may hang
        return [child.name for child in self._children() if child.ready is not None and now > child.heard + after]


def _counts(rows: Iterable[Sequence[Any]]) -> Counter[tuple[str, str]]:
    return Counter({(queue, what): n for queue, what, n in rows})


def _how(child: Child) -> str:
    """Return how a child has ended, in words."""
    code = child.process.returncode
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    memory = f" ({shown_size(child.pulse['memory'])} when it was seen last)" if child.pulse else ""
    if code == -signal.SIGKILL and not child.is_killed:
        return f"was killed by {name}, as the system does when memory runs out{memory}"
    return f"was killed by {name}" + ("" if child.is_killed else memory)


def _shared_memory() -> int:
    """Return the descriptor of memory that two processes can share."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("latchwork-hand")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, SIZE)
    return descriptor
