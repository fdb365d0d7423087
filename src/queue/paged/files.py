"""The file layer of the local queue: the few file operations it is built on; no other module touches the disk.

A test gives its own `Files` instead: one that records, loses and reorders whatever was not synced, tears writes and
fails on request. Every method raises plain `OSError`; the callers turn it into the package's errors.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ...forks import reset_in_child
from ...ownership import warn_of_others

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class File:
    """An open file, read and written at positions. Reading beyond the end returns nothing."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, data: bytes, position: int) -> None:
        """Write all of `data` at `position`, visible to every reader at once; on disk only after `sync`."""
        written = os.pwrite(self._fd, data, position)
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], position + written)

    def allocate(self, size: int) -> None:
        """Make the file exactly `size` bytes, new ones zero, and reserve its space on the disk."""
        os.ftruncate(self._fd, size)
        if hasattr(os, "posix_fallocate"):  # macOS has none; there a full disk shows when a page is written
            os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        """Make the file exactly `size` bytes."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        """Return once everything written to this file is on the disk. After an error its content on the disk is
        unknown.
        """
        _sync(self._fd)

    def close(self) -> None:
        """Close the file, without a sync."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # never complete, or closed already: a destructor raises nothing
            self.close()


class FileLock(File):
    """A lock that a forked child gives up at once; otherwise it would last as long as the child."""

    __slots__ = ("__weakref__",)

    def close(self) -> None:
        """Release the lock, also if a child that another thread forked within `lock` has the file open too."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        super().close()

    def reset_after_fork(self) -> None:
        """Close the file in a forked child; the lock on it is the parent's.

        It runs before `PagedQueue.disown` calls `close`, because `forks` handles a fork first; so `close` unlocks
        nothing.
        """
        super().close()

    def __del__(self) -> None:
        """Close the file without unlocking: it may be a child's copy."""
        with suppress(AttributeError, OSError):  # as above
            super().close()


class Files:
    """The directory operations, and the way to open files. New files and directories are private to the user."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            return os.listdir(directory)  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def make_directory(self, directory: Path) -> None:
        """Create a directory (and its parents) if it does not exist, durably."""
        if directory.is_dir():
            return
        self.make_directory(directory.parent)
        directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        self.sync_directory(directory.parent)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make an empty file if there is none."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        opened = File(os.open(path, flags, _FILE_MODE))
        warn_of_others(path)
        return opened

    def replace(self, source: str, target: str) -> None:
        """Rename over the target, atomically; on disk only after `sync_directory`."""
        Path(source).replace(target)

    def remove(self, path: str) -> None:
        """Delete a file; a missing file is no error."""
        Path(path).unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Return once the names of the directory are on the disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock:
        """Lock `path` until closed or until this process ends, however it ends: the kernel releases it.

        Raises `BlockingIOError` if another process holds the lock.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        lock = FileLock(fd)
        reset_in_child(lock)  # before it is taken, as another thread may fork at any moment
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock


class ReadingFiles(Files):
    """The file layer of a look from outside: it opens files for reading alone, so that the disk may be read-only."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading. Nothing is created."""
        del create
        opened = File(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        warn_of_others(path)
        return opened


_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

SYSTEM_FILES = Files()
"""The file layer of the operating system, the default."""
