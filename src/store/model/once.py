"""How an update is remembered, so that it happens once: a value; `latchwork.store.once` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest
from ...inputs import checked_switch
from ...plain import shown
from .expr import Bound, Expr
from .record import checked_bins


@dataclass(frozen=True, slots=True)
class Once:
    """How one kind of update on one kind of record is remembered.

    capacity: how many tokens the map keeps; the same for the record's whole life.  bin: the map bin.  result: what to
    remember, a value or an expression evaluated after the update.  monotone: once false, the update's guard stays
    false for ever (a fence, an epoch), so that a refusal is final even after doubt (P0.6).  goes_on: the caller goes on
    with the token of a refusal (`details["token"]`), so a refusal settles nothing yet; one that cannot be looked into
    is unknown, as its request may come again.  answer: a bin whose value after the update is the result, and which is
    read anew where the update turns out to have been applied before; instead of `result`, cheaper where a later value
    serves as well.  token: a token minted before, to go on with an update that was begun earlier; minted when None.
    Raises `InvalidRequest` where one of them is not what every backend takes.
    """

    capacity: int
    bin: str = "ops"
    result: Any | Expr | Bound = None
    monotone: bool = False
    goes_on: bool = False
    answer: str | None = None
    token: bytes | None = None

    def __post_init__(self) -> None:
        checked_switch("monotone", self.monotone)
        checked_switch("goes_on", self.goes_on)
        if not isinstance(self.capacity, int) or not self.capacity >= 1:
            raise InvalidRequest(f"a memory of {shown(self.capacity)} tokens: it must hold at least 1, a whole number")
        checked_bins((self.bin,) if self.answer is None else (self.bin, self.answer))
        if self.token is not None and not (isinstance(self.token, bytes) and self.token):
            raise InvalidRequest(f"token {shown(self.token)}: give the bytes of one that was minted before, or None")
