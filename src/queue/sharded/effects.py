"""The effects of a message: named by the message and not by its delivery, so that each happens once (docs/protocols
P23).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote

from ...coord.effects.marks import token_of
from ...coord.effects.step import MIN_KEEP, DoneStep, checked_keep, done_in
from ...errors import InvalidRequest
from ...inputs import Span, checked_text
from ...plain import shown
from ...store.port import MAX_TTL, Key, RecordStore

MAX_NAME = 200
"""Characters in the name of a step."""
LIVES = 2
"""Lives of a message for which its effects are remembered, if nothing else is said."""


class Otherwise(Enum):
    """The result of an effect whose guard refused it, where none is given: an error."""

    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class MessageEffects:
    """The names and records of the effects of one message for one reader.

    reader: the name of the group that reads it; "" for the queue's own consumers.
    """

    client_id: str
    reader: str
    message_id: str

    @property
    def set(self) -> str:
        """The set of all records of effects of the client."""
        return f"{self.client_id}_effect_set"

    @property
    def key(self) -> Key:
        """The key of the record of the message's steps."""
        return Key(self.set, f"M/{quote(self.reader, safe='')}/{quote(self.message_id, safe='')}")

    def token(self, name: str) -> bytes:
        """Return the token of the effect of this name. Raises `InvalidRequest`."""
        if len(name) > MAX_NAME:
            raise InvalidRequest(f"the name of a step, {shown(name)}, has {len(name)} characters; at most {MAX_NAME}")
        return token_of(self.client_id, self.reader, self.message_id, name)

    def done(self, store: RecordStore) -> dict[str, DoneStep]:
        """Return the steps of the message that are done, by name. One call."""
        record = store.get(self.key)
        return done_in(self.key, record.bins) if record else {}


def checked_step(name: str) -> str:
    """Return the name of a step. Raises `InvalidRequest`."""
    return checked_text("name", name)


def kept_for(keep: Span | None, life: int) -> int:
    """Return the seconds for which effects are remembered; default: twice the life of a message, which is `life`."""
    return min(MAX_TTL, max(int(MIN_KEEP), LIVES * life)) if keep is None else checked_keep(keep)
