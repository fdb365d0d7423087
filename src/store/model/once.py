"""The rules by which an update is remembered so that it happens once, as a value; `latchwork.store.once` has the
algorithm.
"""

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
    """The way in which one kind of update on one kind of record is remembered.

    capacity: how many tokens the map keeps; constant for the record's whole life.
    bin: the map bin.
    result: what to remember, a value or an expression evaluated after the update.
    monotone: once false, the update's guard stays false (a fence, an epoch), so that a refusal is final even
        after doubt (P0.6).
    goes_on: the caller continues with the token of a refusal (`details["token"]`), so a refusal decides nothing yet; if
        the record cannot be read after a refusal, the outcome is unknown, as the request may arrive again.
    answer: instead of `result`, a bin whose value after the update is the result. It is read again if the update turns
        out to have been applied before: cheaper if a later value is good enough.
    token: a token minted before, to continue an update that was begun earlier; minted when None.
    is_new: no attempt with this token was sent yet.

    Raises `InvalidRequest` if one of them is not accepted by every backend.
    """

    capacity: int
    bin: str = "ops"
    result: Any | Expr | Bound = None
    monotone: bool = False
    goes_on: bool = False
    answer: str | None = None
    token: bytes | None = None
    is_new: bool = False

    def __post_init__(self) -> None:
        checked_switch("monotone", self.monotone)
        checked_switch("goes_on", self.goes_on)
        if not isinstance(self.capacity, int) or not self.capacity >= 1:
            raise InvalidRequest(f"a memory of {shown(self.capacity)} tokens: it must hold at least 1, a whole number")
        checked_bins((self.bin,) if self.answer is None else (self.bin, self.answer))
        if self.token is not None and not (isinstance(self.token, bytes) and self.token):
            raise InvalidRequest(f"token {shown(self.token)}: give the bytes of one that was minted before, or None")
