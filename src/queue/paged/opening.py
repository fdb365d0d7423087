"""The checks before a local queue is opened: valid arguments, the right format, and no other owner."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

from ...errors import AlreadyOpen, InvalidRequest
from ...inputs import is_int, is_number
from ...plain import shown
from .files import FileLock
from .layout import Layout

MIN_PAGE, MAX_PAGE = 64, 2**31 - 1
MAX_LIFETIME = 10**14
"""Seconds: the most that a timedelta holds, and little enough to subtract from every clock."""
_PREFIX = re.compile(r"[^/\0]{1,100}")


def check_arguments(prefix: str, page_size: int, force_every: int, lifetime: float | None) -> None:
    """Raise `InvalidRequest` for arguments with which no queue can be opened."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix) or not _nameable(prefix):
        raise InvalidRequest(
            f"a prefix has 1 to 100 characters that a file's name can have, and no '/': not {shown(prefix)}"
        )
    if not isinstance(page_size, int) or not MIN_PAGE <= page_size <= MAX_PAGE:
        raise InvalidRequest(f"page_size is {shown(page_size)}; it must be {MIN_PAGE} to {MAX_PAGE} bytes")
    if not is_int(force_every) or force_every < 0:
        raise InvalidRequest(
            f"force_every is {shown(force_every)}; it must be a whole number from 0 (leave it to the system)"
        )
    if lifetime is not None and (not is_number(lifetime) or not 0 < lifetime <= MAX_LIFETIME):
        raise InvalidRequest(
            f"lifetime is {shown(lifetime)}; it must be more than 0 seconds and at most {MAX_LIFETIME}, or None to "
            "keep everything"
        )


def checked_directory(directory: str | os.PathLike[str]) -> Path:
    """Return the directory as an absolute path, valid also if the process changes its own directory. Raises
    `InvalidRequest`.
    """
    try:
        path = Path(directory)
    except TypeError as failure:
        raise InvalidRequest(f"directory is {shown(directory)}; give a path") from failure
    if not _nameable(str(path)):
        raise InvalidRequest(f"directory is {shown(directory)}, which no file system takes; correct it")
    try:
        return path.expanduser().absolute()
    except (RuntimeError, OSError) as failure:
        raise InvalidRequest(f"directory is {shown(directory)}: {failure}; write the path in full") from failure


def _nameable(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def lock_directory(layout: Layout) -> FileLock:
    """Lock the queue. The lock ends with its process, so a killed owner needs no cleaning up."""
    path = layout.path("lock")
    try:
        return layout.files.lock(path)
    except BlockingIOError as error:
        raise AlreadyOpen(
            f"{path} is locked: another process, or this one, has the queue open; close it there first"
        ) from error


def resolve_page_size(layout: Layout, wanted: int) -> int:
    """Return the page size of the queue; if it does not exist yet, create it with the page size wanted."""
    stored = layout.stored_page_size()
    if stored is None:
        layout.store_page_size(wanted)
        return wanted
    if stored != wanted:
        warnings.warn(f"{layout.path('allMeta')} says pages of {stored} bytes; {wanted} is ignored", stacklevel=3)
    return stored
