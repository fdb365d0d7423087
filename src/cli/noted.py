"""What a person does by a command, in the record of what people have done."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractContextManager

from ..inputs import farm_or_default
from ..observe.audit import Deed, audited
from .session import Session


def noted(
    session: Session, what: str, place: str, farm: str | None, *names: str, before: str = "", why: str = ""
) -> AbstractContextManager[Deed]:
    """Keep a record of what this person does in the block. Costs and raises as `audited`.

    place: the client; or the kind of a thing that belongs to no client.
    """
    deed = Deed(farm_or_default(farm), person(), what, "/".join((place, *names)), why, before)
    return audited(session.store, deed)


def person() -> str:
    """Return who runs this command, for people: `user@host`."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, as in a container
        return f"uid {os.getuid()}@{socket.gethostname()}"
