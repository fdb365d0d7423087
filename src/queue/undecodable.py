"""What may be said of bytes that no codec understands: never what they hold."""

from __future__ import annotations

import re

import msgspec

_QUOTED = re.compile(r"('|unknown field |enum value |Invalid value ).*", re.DOTALL)
"""From where on msgspec quotes what it has found."""


def why(failure: Exception) -> str:
    """What msgspec says, without what it quotes of the message; of an error that anybody may have raised, its type."""
    own = isinstance(failure, msgspec.MsgspecError | UnicodeDecodeError) and failure.__cause__ is None
    return _QUOTED.sub(r"\1...", str(failure)) if own else type(failure).__name__
