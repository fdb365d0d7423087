"""Consumers of the sharded queue: threads that receive, handle and acknowledge."""

from typing import TYPE_CHECKING

from ....lazy import offer

if TYPE_CHECKING:
    from .consumer import Consumer

__all__ = ["Consumer"]

__getattr__, __dir__ = offer(
    __name__,
    {
        ".consumer": "Consumer",
    },
)
