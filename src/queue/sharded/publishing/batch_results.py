"""The results of the messages of a batch, in the order in which they were published (docs/protocols P18, P31)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from ....deadline import Deadline
from ....errors import Cancelled, Corrupt, Expired, InvalidRequest, LatchworkError, NotFound, WaitTimeout
from ....plain import shown
from ....retry import Poll, may_pass, outlive
from ....store import Key, Record
from ...rows import read_each
from ..batches.blocks import BLOCK, Block
from ..batches.records import BatchRecords, BatchState
from ..delayed.stored import MAX_NAME
from ..envelope import checked_id
from ..handles import QueueHandle
from ..results import is_at_work, may_come, no_result, opened, too_late
from ..rules import RESULT
from ..slots import slot_of_text
from ..status import Finder, Found, State, Status, find_messages

LOOKS = Poll(low=0.02, high=1.0, factor=1.5)
"""The pauses between two looks for the next result."""
_NOWHERE = (State.DONE, State.GONE, State.EXPIRED, State.UNKNOWN)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came out of one message of a batch.

    message_id: as `publish` returned it; None where it is not known here: its publishing raised an error, and it was
        delivered nevertheless; or a process of an earlier version has published it, or its queue kept no results then.
    state: where the message was found. DONE: it has a result, or `error` says why that is not there.
    value: what its handler returned. None also where `error` says why there is none.
    error: what `ShardedQueue.result` raises for it; None where there is a result.

    The repr leaves out the value and the error, which may be confidential.
    """

    message_id: str | None
    state: State
    value: Any = field(default=None, repr=False)
    error: LatchworkError | None = field(default=None, repr=False)

    def result(self) -> Any:
        """Return what the handler returned; raise `error` where there is none."""
        if self.error is not None:
            raise self.error
        return self.value


class BatchResults(Iterator[BatchResult]):
    """The results of a batch, as `QueueBatch.results` says. For one thread.

    After an error of the store, `next` goes on where it was.
    """

    def __init__(self, queue: QueueHandle, records: BatchRecords, state: BatchState, limit: float | None) -> None:
        self._queue, self._records, self._batch = queue, records, state
        self._seams = queue.store.seams
        self._end = None if limit is None else self._seams.monotonic() + limit
        self._found: deque[BatchResult] = deque()
        self._next = 0  # the ordinal that is looked at next
        self._waited_for = -1  # the ordinal that had no result at the last look
        self._early = False  # whether any were read before the batch was complete, so that others may have come
        self._over = False
        self._at_work: bool | None = None

    def __next__(self) -> BatchResult:
        if not self._found:
            self._seams.may_wait("QueueBatch.results", self._left())
            self._found.extend(self.more())
        if not self._found:
            raise StopIteration
        return self._found.popleft()

    def more(self) -> list[BatchResult]:
        """Return the next results, up to 500, once there is one at least; none at the end."""
        tries = 0
        with Deadline(self._seams, self._left()) as deadline:
            while not self._over:
                last = deadline.left() == 0
                found = outlive(self._seams, deadline, partial(self._look, last=last), passing=may_pass)
                if found is not None:
                    return found
                tries += 1
                left, pause = deadline.left(), LOOKS.pause(tries, self._seams)
                self._seams.sleep(pause if left is None else min(pause, left))
        return []

    def _left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self._seams.monotonic())

    def _look(self, *, last: bool) -> list[BatchResult] | None:
        """Return the results that come next; None: wait for them.

        last: whether the time is over, so that what is not done yet is told as well.
        """
        while True:
            # 1. Read the batch, and who is in its block. Before the batch is complete that may change.
            number = self._next // BLOCK
            state, block, names = self._records.look(self._batch, number)
            if not (state.complete or last):
                return None
            self._early = self._early or not state.complete
            begin, end = self._next, min((number + 1) * BLOCK, state.given)
            if isinstance(block, LatchworkError):
                if begin < end:  # nobody knows which of them are messages
                    self._next = end
                    return [self._unread(names, n, block) for n in range(begin, end)]
                block = Block()
            left = [n for n in range(begin, end) if _is_message(state, block, names, n)]
            # 2. Look for the ones that are done, up to the first that is not, and for that one where it is the first.
            wanted = left
            if not last:
                counted = [] if left[:1] == [self._waited_for] else list(takewhile(partial(_is_over, block), left))
                wanted = counted or left[:1]
            found: list[BatchResult] = []
            for one in self._answers(state, block, names, wanted, last=last):
                if one is None:
                    break
                found.append(one)
            if found:
                self._next = wanted[len(found) - 1] + 1
                self._over = self._next == state.given and not self._early
                return found
            if left:
                self._waited_for = left[0]
                return None
            # 3. Nothing is left in this block.
            self._next = end
            if end == state.given:
                self._over = True
                if not self._early:
                    return []
                why = "is not closed: more messages may come"
                if state.complete:
                    why = "was not closed when the first messages were read: others may have come: read them again"
                raise WaitTimeout(f"batch {shown(state.name)} {why}")

    def _unread(self, names: Mapping[int, str] | LatchworkError, ordinal: int, failure: LatchworkError) -> BatchResult:
        id = None if isinstance(names, LatchworkError) else names.get(ordinal % BLOCK)
        return BatchResult(id, State.UNKNOWN, error=failure)

    def _answers(
        self,
        state: BatchState,
        block: Block,
        names: Mapping[int, str] | LatchworkError,
        ordinals: Sequence[int],
        *,
        last: bool,
    ) -> list[BatchResult | None]:
        """Return what came out of these messages; None of one that has no result yet, unless it is the last look."""
        if isinstance(names, LatchworkError):
            return [self._unread(names, n, names) for n in ordinals]
        # 1. Where is each message? Most have their result in the slot in which they were counted.
        answers: dict[int, BatchResult | None] = {}
        finds: dict[int, Finder] = {}
        for n in ordinals:
            id = names.get(n % BLOCK)
            if id is None:
                answers[n] = _not_known_here(n, block)
                continue
            try:
                finds[n] = self._finder(id)
            except InvalidRequest as damage:
                answers[n] = self._unread(names, n, Corrupt(f"the id of a message of {state.name!r}: {damage}"))
        kept = self._kept(finds, block)
        answers |= {n: _with_result(stored, finds[n].message_id) for n, stored in kept.items()}
        others = [n for n in finds if n not in kept]
        looked = find_messages([finds[n] for n in others])
        # 2. Only after that: does its batch count it? So nothing that was acknowledged meanwhile is taken for lost.
        after: Block | LatchworkError = block
        if any(isinstance(one, Found) and one.status.state in _NOWHERE for one in looked):
            after = self._records.look(self._batch, ordinals[0] // BLOCK)[1]
        for n, one in zip(others, looked, strict=True):
            id = finds[n].message_id
            if isinstance(one, LatchworkError):
                answers[n] = self._unread(names, n, one)
                continue
            answers[n] = self._outcome(one, id, n, state, after)
            if answers[n] is None and last:
                failure = too_late(self._queue, one.status, id, at_work=self._is_at_work(one.status))
                answers[n] = BatchResult(id, one.status.state, error=failure)
        return [answers[n] for n in ordinals]

    def _is_at_work(self, found: Status) -> bool:
        """Whether anybody works on the queue of a message that waits; asked once. One call, or none."""
        if found.state is State.READY and self._at_work is None:
            self._at_work = is_at_work(self._queue, found)
        return found.state is not State.READY or self._at_work is True

    def _outcome(
        self, found: Found, id: str, ordinal: int, state: BatchState, block: Block | LatchworkError
    ) -> BatchResult | None:
        """Return what came out of a message that was looked for everywhere; None: it may have a result later."""
        now = found.status
        if now.kept is not None:
            return _with_result(now.kept, id)
        if now.state in _NOWHERE:
            return _ended(found, id, ordinal, block)
        if not may_come(now, self._queue.config):
            return BatchResult(id, now.state, error=no_result(now, id))
        if not state.cancelled or now.state is State.RUNNING:
            return None
        stopped = f"message {shown(id)} has no result: batch {shown(state.name)} was cancelled before it was begun"
        return BatchResult(id, now.state, error=Cancelled(stopped))

    def _finder(self, id: str) -> Finder:
        queue, places = self._queue, self._queue.pointers.places
        assert places is not None  # noqa: S101 - a group has no batches
        sides = (queue.pointers, queue.sideline.pointers, queue.parked.pointers)
        return Finder(sides, queue.delayed, places, checked_id(id, MAX_NAME))

    def _kept(self, finds: Mapping[int, Finder], block: Block) -> dict[int, Any]:
        """Return the stored results of messages that are in the slots in which they were counted, or, of those that are
        not counted, in the slots that their ids name. One call, or none.
        """
        keys: dict[int, Key] = {}
        for n, find in finds.items():
            slot = slot_of_text(block.done.get(n % BLOCK)) or (find.first and find.first.slot)
            if slot is not None:
                keys[n] = self._queue.pointers.key(slot)
        rows = read_each(self._queue.store, list(keys.values()), "msgId", RESULT) if keys else []
        return {
            n: row.bins[RESULT]
            for n, row in zip(keys, rows, strict=True)
            if isinstance(row, Record)
            and row.bins.get("msgId") == finds[n].message_id
            and row.bins.get(RESULT) is not None
        }


def _is_message(state: BatchState, block: Block, names: Mapping[int, str] | LatchworkError, ordinal: int) -> bool:
    """Whether an ordinal is that of a message of the batch, as far as is known.

    Of a call that has not ended, as its process may have died, just the messages that are done, or vouched for.
    """
    place = ordinal % BLOCK
    if not state.is_open(ordinal):
        return place not in block.out
    is_named = not isinstance(names, LatchworkError) and place in names
    return is_named and any(place in some for some in (block.done, block.gone, block.kept))


def _is_over(block: Block, ordinal: int) -> bool:
    return ordinal % BLOCK in block.done or ordinal % BLOCK in block.gone


def _with_result(stored: object, id: str) -> BatchResult:
    try:
        return BatchResult(id, State.DONE, opened(stored, id))
    except LatchworkError as failure:
        return BatchResult(id, State.DONE, error=failure)


def _ended(found: Found, id: str, ordinal: int, block: Block | LatchworkError) -> BatchResult | None:
    """Return how a message has ended that is nowhere; None: it moves from place to place.

    Whoever acknowledges a message counts it first: what is not counted was not acknowledged.
    """
    state, place = found.status.state, ordinal % BLOCK
    if isinstance(block, LatchworkError):
        return BatchResult(id, state, error=block)
    if place in block.done:
        state = State.DONE
    elif place in block.gone or state is State.GONE:
        state = State.GONE
    else:
        lost = f"message {shown(id)} has no result: its life ended before it was done, or the store has lost it"
        return BatchResult(id, State.EXPIRED, error=Expired(lost)) if found.certain else None
    return BatchResult(id, state, error=no_result(Status(state), id))


def _not_known_here(ordinal: int, block: Block) -> BatchResult:
    """Return what is known of a message whose id the batch does not have."""
    if ordinal % BLOCK in block.gone:
        return BatchResult(None, State.GONE, error=Cancelled("a message was cancelled, discarded or moved"))
    state = State.DONE if ordinal % BLOCK in block.done else State.UNKNOWN
    return BatchResult(
        None, state,
        error=NotFound(
            f"the result of message {ordinal + 1} is not known here: its publishing raised an error, and it was "
            "delivered nevertheless; or an earlier version published it, or its queue kept no results then. Where "
            "`publish` has returned its id, ask `queue.result` with the id"
        ),
    )  # fmt: skip
