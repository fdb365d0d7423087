"""The three parts of a queue, or of a group: its messages, its sideline and its parked messages."""

from __future__ import annotations

from ...store import RecordStore
from .batches.counting import BatchCounting
from .config import PARKED, SIDELINE, QueueConfig, whole_seconds
from .groups.members import Members
from .groups.pointers import GroupPointers, SharedPointers
from .places import MAIN, SIDE, Places
from .places import PARKED as PARKED_SIDE
from .shards import Shards


def parts_of(store: RecordStore, client_id: str, config: QueueConfig) -> tuple[Shards, Shards, Shards]:
    """Return the main part, the sideline and the parked messages."""
    sweep, expiry = config.sweep_duration.total_seconds(), whole_seconds(config.message_expiry)
    lives = {"": expiry, SIDELINE: expiry, PARKED: whole_seconds(config.queue_expiry)}
    main, sideline, parked = (
        Shards(store, client_id, config.stored_name + suffix, config.shards, ttl=ttl, sweep=sweep)
        for suffix, ttl in lives.items()
    )
    if config.of:
        shared = SharedPointers(store, client_id, config.of, config.tag, config.shards, ttl=expiry, sweep=sweep)
        return GroupPointers(config.name, shared, main), sideline, parked
    # A trace leads to a result, which is stored up to a message's life after it.
    traced = expiry + whole_seconds(config.results) if config.results else 0
    places = Places(store, client_id, config.name, max(lives[PARKED], traced))
    counting = BatchCounting(store, client_id, names=config.results is not None)
    for shards, side in ((main, MAIN), (sideline, SIDE), (parked, PARKED_SIDE)):
        shards.places, shards.side, shards.counting = places, side, counting
    main.readers, main.results = Members(main), whole_seconds(config.results) if config.results else 0
    return main, sideline, parked
