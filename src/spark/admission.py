"""The part of the available messages that the next batch of a stream reads."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from ..queue.sharded import stream as ranges
from ..queue.sharded.slots import Slot
from .options import Options

SAMPLE = 64
"""Messages whose sizes stand for all."""
ROUNDS = 3


class Admission:
    """The limits that the options set, for one planner; it remembers since when messages wait for others."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._since: float | None = None

    def read_limit(self) -> ReadLimit:
        """Return one of the limits that are set: Spark knows one a source, and gives it back with every trigger."""
        options = self._options
        if options.max_messages:
            return ReadMaxRows(options.max_messages)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.min_messages) if options.min_messages else ReadAllAvailable()

    def admitted(self, begins: Sequence[int], ends: Sequence[int], limit: ReadLimit, *, bounded: bool) -> list[int]:
        """Return the ends of the next batch: `begins` if it has to wait for more messages, at most `ends`.

        limit: as Spark gives it; `ReadAllAvailable` overrides all limits.
        bounded: whether no more messages will come, so that nothing is waited for.

        No call to the store, unless batches are limited by bytes or wait for more: then one to four.
        """
        if isinstance(limit, ReadAllAvailable):
            return list(ends)
        if self._options.min_messages and not bounded and self._has_to_wait(sum(ends) - sum(begins)):
            return list(begins)
        found = list(ends)
        if self._options.max_messages:
            found = limited(begins, found, self._options.max_messages)
        if self._options.max_bytes:
            found = self._of_size(begins, found)
        if found == list(ends):
            self._since = None  # else some are left, which may have waited since then
        return found

    def _has_to_wait(self, messages: int) -> bool:
        """Whether there are too few messages, and the first of them has not waited for long enough."""
        if not messages:
            return False
        now = self._options.open().registry.store.seams.monotonic()
        self._since = now if self._since is None else self._since
        return messages < self._options.min_messages and now - self._since < self._options.max_delay

    def _of_size(self, begins: Sequence[int], ends: list[int]) -> list[int]:
        """Return ends for about `maxBytesPerBatch`, by a sample of what would be read; at least one message. One to
        three calls.

        Messages far behind may have other sizes, so each round samples as much as the one before found to fit.
        """
        pointers, total = self._options.open().pointers, sum(ends) - sum(begins)
        fits = looked_at = total
        for _ in range(ROUNDS):
            looked_at = fits
            slots = _spread(begins, limited(begins, ends, looked_at))
            size = sum(ranges.sizes(pointers, slots))
            fits = min(total, max(1, self._options.max_bytes * len(slots) // size)) if size else total
            if fits == looked_at:
                break
        return limited(begins, ends, min(fits, looked_at))


def limited(begins: Sequence[int], ends: Sequence[int], rows: int) -> list[int]:
    """Return ends with at most `rows` rows in all, shared out evenly; what one shard does not need goes to the others.

    If there are fewer rows than shards, the first shards change from batch to batch, as the offsets move on.
    """
    first, shards = sum(begins), len(begins)
    order = [(first + n) % shards for n in range(shards)]
    left = {shard: ends[shard] - begins[shard] for shard in order if ends[shard] > begins[shard]}
    taken = dict.fromkeys(range(len(begins)), 0)
    while left and rows > 0:
        share = max(1, rows // len(left))
        for shard in list(left):
            n = min(share, left[shard], rows)
            taken[shard] += n
            left[shard] -= n
            rows -= n
            if not left[shard]:
                del left[shard]
    return [begin + taken[shard] for shard, begin in enumerate(begins)]


def _spread(begins: Sequence[int], ends: Sequence[int]) -> list[Slot]:
    """Return some of the slots, evenly spread over all of them."""
    total = sum(ends) - sum(begins)
    n = min(total, SAMPLE)
    chosen = iter([number * total // n for number in range(n)])
    slots: list[Slot] = []
    wanted, before = next(chosen, None), 0
    for shard, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        while wanted is not None and wanted - before < end - begin:
            slots.append(Slot(shard, begin + 1 + wanted - before))
            wanted = next(chosen, None)
        before += end - begin
    return slots
