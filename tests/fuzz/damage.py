"""What may happen to bytes that are kept: kinds of damage to a part of them, by a seeded chance."""

from __future__ import annotations

from random import Random


def flipped(data: bytearray, start: int, end: int, random: Random) -> None:
    for _ in range(random.choice((1, 1, 1, 3))):
        data[random.randrange(start, end)] ^= 1 << random.randrange(8)


def garbled(data: bytearray, start: int, end: int, random: Random) -> None:
    first = random.randrange(start, end)
    last = min(end, first + random.choice((1, 4, 16, 100)))
    data[first:last] = random.randbytes(last - first)


def zeroed(data: bytearray, start: int, end: int, random: Random) -> None:
    first = random.randrange(start, end)
    last = min(end, first + random.choice((1, 8, 64, 4096)))
    data[first:last] = bytes(last - first)


def cut(data: bytearray, start: int, end: int, random: Random) -> None:
    del data[random.randrange(start, end) :]


IN_PLACE = (flipped, garbled, zeroed)
"""Those that leave all other bytes where they are."""
