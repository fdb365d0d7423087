"""The messages between a position of a local queue and its end: how many, and since when."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Place
from .reader import View


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages that a consumer has not read yet.

    messages: one larger than a page counts once for each of its pages.
    bytes: of the files, including unused ends of full pages.
    oldest: when the first of them arrived, in seconds since the epoch; None if there is none.
    """

    messages: int
    bytes: int
    oldest: float | None


def distance(view: View, place: Place) -> int:
    """Return the bytes of the files between the position and the end of the queue. Reads nothing."""
    page, position = view.tail()
    return (page - place[0]) * view.page_size + position - place[1]


def backlog(view: View, place: Place) -> Backlog:
    """Return the messages behind the position, by the indexes of its page and of all later ones."""
    page, position = place
    messages, oldest = 0, None
    for number in range(page, view.tail()[0] + 1):
        index = view.index(number)
        start = index.from_position(position) if number == page else 0
        if oldest is None and start < len(index):
            oldest = index.entry(start)[0] / 1000
        messages += len(index) - start
    return Backlog(messages, distance(view, place), oldest)
