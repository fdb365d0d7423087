"""Looking at one side of a queue without reading more than was agreed: for pages, and to choose messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from ...errors import InvalidRequest
from ...plain import shown
from .delayed.view import HOUR, DelayedView, due_of
from .envelope import Message
from .peek import Look, look
from .selection import Criteria
from .sideline import SideView
from .slots import Slot
from .subscription import Subscription

SIDES = ("ready", "delayed", "sideline", "parked")
MOST_READ = 10_000
"""Records that one look reads, at most."""


def view_of(queue: Subscription, side: str) -> SideView | DelayedView:
    """Return the side of a queue of this name, but for what is ready."""
    views: dict[str, SideView | DelayedView] = {
        "delayed": queue.delayed, "sideline": queue.sideline, "parked": queue.parked,
    }  # fmt: skip
    return views[side]


def look_at(
    queue: Subscription,
    side: str,
    limit: int,
    *,
    reason: str | None = None,
    key: str | None = None,
    header: Mapping[str, str] | None = None,
    older_than: timedelta | float | None = None,
    message_id: str | None = None,
    also: Callable[[Message], bool] | None = None,
    most: int = MOST_READ,
    after: Slot | None = None,
) -> Look:
    """Return up to `limit` messages of a side that were not received and match all arguments, which are those of
    `SideView.search`.

    also: what else is asked of a message.
    most: slots that are looked at, whatever they hold: a call for each 1,000. Of delayed messages as many ids, and 15
        calls.
    after: where the look before ended. Not for delayed messages, of which the ones are found that are due first.

    Raises `InvalidRequest` and the store's errors.
    """
    if side not in SIDES:
        raise InvalidRequest(f"side is {shown(side)}; it must be {', '.join(SIDES)}")
    criteria, now = Criteria(reason, header, older_than, 1, message_id), queue.store.seams.wall()
    if side == "delayed" and key is not None:
        raise InvalidRequest("delayed messages cannot be looked for by key: their shard may not be decided yet")
    shard = None if key is None else queue.shard_of(key)

    def matches(message: Message) -> bool:
        place = message.shard % queue.config.shards  # behind those of the queue a group has as many of its own
        return shard in (None, place) and criteria.matches(message, now) and (also is None or also(message))

    if side == "delayed":
        return _look_later(queue.delayed, limit, matches, most)
    view = {"ready": queue, "sideline": queue.sideline, "parked": queue.parked}[side]
    return look(view.pointers, queue.codec, limit, matches, most=most, after=after)


def _look_later(view: DelayedView, limit: int, matches: Callable[[Message], bool], most: int) -> Look:
    """Return up to `limit` delayed messages that match, due within the hour, of the next `most`."""
    found, left = list[Message](), most
    for looked, some in view.looks(HOUR):
        if left <= 0 or len(found) > limit:
            return Look(sorted(found, key=due_of)[:limit], more=True)
        found += [message for message in some if matches(message)]
        left -= looked
    return Look(sorted(found, key=due_of)[:limit], more=len(found) > limit)
