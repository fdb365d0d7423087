"""What a queue promises that tries again by itself, and whose consumers stop in their work (docs/protocols P5, P16)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from latchwork.queue.sharded.rules import SEEN

from ..faults.kinds import Kind
from ..faults.network import Change
from . import sharded
from .consumer import every_acked_publish_is_handled_or_visible

if TYPE_CHECKING:
    from latchwork.retry import Poll

    from ..workload.retry import Retried
    from ..world import World

STORE_LOST = (Kind.RESTART_EMPTY, Kind.RESURRECT)
LATE_STAMP = ", late"
"""The end of the name of an attempt that a stamp counts which comes once more, late."""


class Seen:
    """What the server sees of attempts, by message: which were begun, and which of these do not count."""

    def __init__(self, world: World, backoff: Poll, stored: Callable[[str], list[dict[str, Any]]]) -> None:
        self.world, self.backoff, self.stored = world, backoff, stored
        self.begun: defaultdict[str, set[str]] = defaultdict(set)
        self.uncounted: defaultdict[str, set[str]] = defaultdict(set)
        self.failed: defaultdict[str, set[str]] = defaultdict(set)
        self.loaded: set[str] = set()
        self.copied: set[str] = set()
        """Messages of which there was a second copy, as a move in doubt leaves it, or a late one: each has attempts of
        its own.
        """
        self.attempts: list[tuple[float, str, int, int]] = []
        self.robbed: list[tuple[float, str, str, str, bool]] = []
        """The last: whether who took it had given it back before, so that it was a late request."""
        self.parked: list[tuple[float, str, int, set[str]]] = []
        """When, the message, its attempts, and those that were begun."""
        self.created: dict[str, float] = {}
        self.early: list[tuple[str, float, float]] = []
        self.cut: defaultdict[tuple[str, str], set[bool]] = defaultdict(set)
        self.blamed: list[tuple[float, str, str]] = []

    def copies(self, message: str) -> int:
        """How many records have the message now."""
        return len(self.stored(message))

    def counted(self, message: str) -> int:
        """How many attempts of the message count by now."""
        return len(self.begun[message] - self.uncounted[message])

    def stamps(self, change: Change) -> None:
        """A record of the queue was written."""
        before, after = change.before, change.after
        message, was, now = _payload(after), before.get("delivery"), after.get("delivery")
        if not before:
            self._loaded(change.who, message)
        if now is not None and now == was and after.get("attempts", 0) > before.get("attempts", 0):
            # The first stamp of many comes late, after its repeat, which bears the same id: both count.
            self._counts_again(message, now)
        elif after.get("interrupted") is not None and _taken_back(after) != _taken_back(before):
            cut = after["interrupted"]  # counts all the same if it was stored as failed before: its time was over
            self.uncounted[message] |= {cut + LATE_STAMP, *({cut} - self.failed[message])}
        if now not in (None, was, SEEN):
            if now.startswith("sweep-"):
                self.cut[change.who, message].add("interrupted" in before)
            else:
                self._handed_out(change, message, was, now)
        if not before and after.get("reason") == "swept" and self.cut[change.who, message] == {True}:
            self.blamed.append((change.when, change.who, message))

    def _loaded(self, who: str, message: str) -> None:
        """A record was made: by a publisher, or by a move, which deletes the other one after that."""
        again = message in self.loaded and (who.startswith("pub") or self.copies(message) < 2)
        self.loaded.add(message)
        if again:
            self.copied.add(message)

    def _handed_out(self, change: Change, message: str, was: str | None, now: str) -> None:
        if was is not None and was != SEEN and not was.startswith("sweep-"):
            self.robbed.append((change.when, message, was, now, now in self.uncounted[message]))
        self.begun[message].add(now)
        if now in self.uncounted[message]:  # a stamp of who has given it back since
            self._counts_again(message, now)
        if self.copies(message) > 1:
            self.copied.add(message)
        self.attempts.append((change.when, message, change.after.get("attempts", 0), self.counted(message)))

    def _counts_again(self, message: str, delivery: str) -> None:
        self.begun[message].add(again := delivery + LATE_STAMP)
        self.uncounted[message].discard(again)

    def waits(self, name: str, change: Change) -> None:
        """An entry of the delayed messages was written: a failed one, if its name says of which attempt."""
        parts = name.split("#")
        if len(parts) == 1 and not change.before and _payload(change.after) in self.loaded:
            self.copied.add(_payload(change.after))  # the first request of its publisher came after the repeat
        if len(parts) != 3:
            return
        if name not in self.created:
            self.created[name] = self.world.now
            self._failed(_payload(change.after), int(parts[1]), parts[2].partition("~")[0])
        elif "moving" in change.after and "moving" not in change.before:
            pause = min(self.backoff.low * self.backoff.factor ** (int(parts[1]) - 1), self.backoff.high)
            waited = self.world.now - self.created[name]
            if waited < pause - 0.002:  # the server counts whole milliseconds
                self.early.append((name, waited, pause))

    def _failed(self, message: str, attempts: int, delivery: str) -> None:
        """A message was stored for later."""
        self.failed[message].add(delivery)  # messages that were received together have one delivery
        self.uncounted[message].discard(delivery)  # it was interrupted, and failed after that
        if all(bins.get("delivery") != delivery for bins in self.stored(message)):
            # Who failed it was paused meanwhile: a sweep has moved it, so this is one more copy.
            self.copied.add(message)
        if message not in self.copied and attempts < self.counted(message):
            # The stamp that came once more came after its consumer had read how many there were.
            self.uncounted[message].add(delivery + LATE_STAMP)

    def parks(self, change: Change) -> None:
        """A parked record was written."""
        if not change.before:
            message = _payload(change.after)
            self.parked.append((change.when, message, change.after.get("attempts", 0), set(self.begun[message])))


def _taken_back(bins: dict[str, Any]) -> tuple[Any, Any]:
    return bins.get("interrupted"), bins.get("attempts")


def _payload(bins: dict[str, Any]) -> str:
    return str(bins.get("data", "")).strip('"')


def check(run: Retried) -> None:
    """All promises."""
    every_acked_publish_is_handled_or_visible(run)
    nobody_is_handed_what_another_holds(run)
    interrupted_attempts_do_not_count(run)
    interrupted_messages_are_not_swept_as_failed(run)
    no_retry_comes_before_its_backoff(run)
    parked_after_the_last_attempt(run)
    returned_messages_come_at_once(run)
    sharded.a_stale_receipt_acknowledges_nothing(run)
    sharded.a_live_delivery_is_not_taken(run)
    sharded.pointers_never_go_back(run)
    sharded.drained_once_faults_stop(run)


def nobody_is_handed_what_another_holds(run: Retried) -> None:
    """Only a sweep takes a message that a consumer has neither settled nor given back; and a late stamp, of a
    consumer that has given it back since (docs/protocols P5): nobody handles it by that one.
    """
    late = run.happened(Kind.DUPLICATE, Kind.LATE)
    for when, message, was, now, had_it in () if run.happened(*STORE_LOST) else run.seen.robbed:
        run.require(
            late and had_it,
            "a message is handed to nobody while another has it",
            f"{message} at {when:.3f}: {was} -> {now}",
        )


def interrupted_attempts_do_not_count(run: Retried) -> None:
    """A message's attempt is no more than the attempts that count; and no fewer, where it has one copy."""
    if run.happened(*STORE_LOST):
        return
    for when, message, attempts, counted in run.seen.attempts:
        exact = run.by_hand and message not in run.seen.copied
        run.require(
            attempts == counted if exact else attempts <= counted, "an interrupted attempt does not count",
            f"{message} had attempt {attempts} at {when:.3f}, and {counted} count",
        )  # fmt: skip


def interrupted_messages_are_not_swept_as_failed(run: Retried) -> None:
    """What a sweep finds interrupted keeps that reason."""
    for when, who, message in run.seen.blamed:
        run.complain("the sweep of interrupted work is no failure", f"{message} by {who} at {when:.3f}")


def no_retry_comes_before_its_backoff(run: Retried) -> None:
    """Except where the server's clock was set."""
    for name, waited, pause in () if run.happened(Kind.SERVER_CLOCK, *STORE_LOST) else run.seen.early:
        run.complain("a retry comes not before its backoff", f"{name} after {waited:.3f} s, not {pause}")


def parked_after_the_last_attempt(run: Retried) -> None:
    """A parked message had as many attempts as it may, and each was begun. Two stamps more count: one that comes once
    more, and that of a consumer which received the message after the last, and ended before it had parked it.
    """
    most = run.config.max_deliveries
    for when, message, attempts, begun in () if run.happened(*STORE_LOST) else run.seen.parked:
        late = sum(one.endswith(LATE_STAMP) for one in begun)
        after_the_last = sum(of == message and n > most and at <= when for at, of, n, _ in run.seen.attempts)
        run.require(
            most <= attempts <= most + late + max(0, after_the_last - 1) and len(begun) >= most,
            "parked after the last attempt",
            f"{message} with attempt {attempts} of {most}, begun {len(begun)} times",
        )
    for entry in run.history.named("receive"):
        for delivery in entry.result if entry.ok else ():
            run.require(
                delivery.attempts <= most, "parked after the last attempt",
                f"{delivery.payload} was handed out with attempt {delivery.attempts} of {most}",
            )  # fmt: skip


def returned_messages_come_at_once(run: Retried) -> None:
    """Once faults have stopped, what is given back is handed out next."""
    run.require(not run.returned, "what is given back comes at once", f"{run.returned} did not")
