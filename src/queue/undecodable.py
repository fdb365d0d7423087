"""The text of errors about bytes that a codec cannot decode, which never contains these bytes."""

from __future__ import annotations

import re

import msgspec

_QUOTED = re.compile(r"('|unknown field |enum value |Invalid value ).*", re.DOTALL)
"""The words after which msgspec quotes the content."""


def why(failure: Exception) -> str:
    """Return msgspec's message without what it quotes; of any other error only the type."""
    own = isinstance(failure, msgspec.MsgspecError | UnicodeDecodeError) and failure.__cause__ is None
    return _QUOTED.sub(r"\1...", str(failure)) if own else type(failure).__name__
