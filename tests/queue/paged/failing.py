"""A file layer of which one call fails, and interrupts at any line of the package.

files = FailingFiles(RecordingFiles())
files.arm(12, eio_after)                                        # the 12th call from now on fails; see HOW
interrupted(40, (cursor, outbox), producer.forward)             # KeyboardInterrupt at the 40th line or return in there
"""

from __future__ import annotations

import errno
import functools
import inspect
import linecache
import sys

from latchwork.errors import LatchworkError
from latchwork.queue.paged.files import Files


def eio_before(call):
    raise OSError(errno.EIO, "Input/output error")


def eio_after(call):
    call()
    raise OSError(errno.EIO, "Input/output error")


def interrupt_before(call):
    raise KeyboardInterrupt


def interrupt_after(call):
    call()
    raise KeyboardInterrupt


HOW = (eio_before, eio_after, interrupt_before, interrupt_after)
"""Without and with the effect of the call: an error does not say whether the disk has it."""


class FailingFiles:
    """Any file layer; the calls of it, and of the files that it opens, count. `failed` names the one that failed."""

    def __init__(self, inner) -> None:
        self.inner, self.left, self.how, self.failed = inner, 0, None, None

    def arm(self, at, how) -> None:
        """Let the so manieth call from now on fail."""
        self.left, self.how = at, how

    def open(self, path, *, create=False):
        return FailingFile(self, self._call("open", lambda: self.inner.open(path, create=create)))

    def _call(self, name, call):
        self.left -= 1
        if self.left != 0:
            return call()
        self.failed = name
        return self.how(call)

    def __getattr__(self, name):
        verb = getattr(self.inner, name)
        return lambda *args: self._call(name, lambda: verb(*args))


class FailingFile:
    """An open file of a `FailingFiles`. Closing it says nothing about the disk, and so never fails."""

    def __init__(self, files, inner) -> None:
        self.files, self.inner, self.close = files, inner, inner.close

    def __getattr__(self, name):
        verb = getattr(self.inner, name)
        return lambda *args: self.files._call(f"file {name}", lambda: verb(*args))


class SmallDisk(Files):
    """The files of a directory on a disk that has no more than `most` blocks for them."""

    BLOCK = 4096

    def __init__(self, directory) -> None:
        self.directory, self.most = directory, 10**9

    def used(self) -> int:
        return sum(-(-file.stat().st_size // self.BLOCK) for file in self.directory.iterdir())

    def open(self, path, *, create=False):
        return SmallDiskFile(self, super().open(path, create=create))

    def claim(self, file, end) -> None:
        """Raise as the system does if there is no room for the file to reach so far."""
        more = -(-end // self.BLOCK) - -(-file.size() // self.BLOCK)
        if more > 0 and self.used() + more > self.most:
            raise OSError(errno.ENOSPC, "No space left on device")


class SmallDiskFile:
    """An open file of a `SmallDisk`."""

    def __init__(self, disk, inner) -> None:
        self.disk, self.inner = disk, inner

    def write(self, data, position) -> None:
        self.disk.claim(self.inner, position + len(data))
        self.inner.write(data, position)

    def allocate(self, size) -> None:
        self.disk.claim(self.inner, size)
        self.inner.allocate(size)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@functools.cache
def _may_be_interrupted(file: str, line: int) -> bool:
    return not linecache.getline(file, line).strip().startswith(("with ", "try:"))


def interrupted(place, modules, act) -> bool:
    """Whether `act` ran into an interrupt at the so manieth place: before a line of these modules, or after a return.

    Not where no interrupt comes: on its way out a block has the line of its "with" once more, before it has let go; the
    line of a "try" is no instruction; and a context manager is never left without its second half.
    """
    left, traced, names = [place], sys.gettrace(), {module.__file__ for module in modules}

    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if name not in names:
            return None
        if event == "line":
            left[0] -= _may_be_interrupted(name, frame.f_lineno)
        elif event == "return":
            left[0] -= not frame.f_code.co_flags & inspect.CO_GENERATOR
        if left[0] == 0:
            left[0] = -1
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        act()
    except (KeyboardInterrupt, LatchworkError):
        pass
    finally:
        sys.settrace(traced)
    return left[0] < 0
