"""A file layer in memory that knows what is on the disk and what is only in the system's cache.

A crash of the process keeps everything. A crash of the machine keeps what was synced and any subset of the rest: of
each unsynced write any of its sectors, of the unsynced names (creations, renames, deletions) any. A sync that fails
leaves its writes in the cache, marked clean: later syncs say yes and write nothing, as Linux does.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random


@dataclass(slots=True)
class Inode:
    """One file: as the process sees it, as it is on the disk, and what lies between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list = field(default_factory=list)  # ("write", position, data) | ("size", size)
    stuck: dict = field(default_factory=dict)  # byte position -> value: believed clean, never written


def apply(data: bytearray, step: tuple) -> None:
    """One pending step, on the content of a file."""
    if step[0] == "size":
        del data[step[1] :]
        data.extend(bytes(step[1] - len(data)))
    else:
        _, position, new = step
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(new)] = new


class RecordingFiles:
    """One directory in memory, as a `latchwork.queue.paged.files.Files`."""

    def __init__(self, *, sector: int = 16) -> None:
        self.sector = sector
        self.names_live: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.pending_names: list = []  # ("link", name, inode) | ("unlink", name) | ("rename", source, target, inode)
        self.locked: set[str] = set()
        self.failing: dict[tuple[str, str], list] = {}
        self.before_step = lambda kind, name: None
        self.done: Counter = Counter()

    # --- the port ---------------------------------------------------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        return list(self.names_live)

    def make_directory(self, directory: Path) -> None:
        self._step("mkdir", "")

    def open(self, path: str, *, create: bool = False) -> RecordingFile:
        name = _name(path)
        inode = self.names_live.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(path)
            self._step("create", name)
            inode = self.names_live[name] = Inode()
            self.pending_names.append(("link", name, inode))
        return RecordingFile(self, name, inode)

    def replace(self, source: str, target: str) -> None:
        source, target = _name(source), _name(target)
        self._step("rename", target)
        inode = self.names_live.pop(source)
        self.names_live[target] = inode
        self.pending_names.append(("rename", source, target, inode))

    def remove(self, path: str) -> None:
        name = _name(path)
        if name in self.names_live:
            self._step("unlink", name)
            del self.names_live[name]
            self.pending_names.append(("unlink", name))

    def sync_directory(self, directory: Path) -> None:
        self._step("sync", "/")
        for step in self.pending_names:
            _rename(self.names_durable, step)
        self.pending_names.clear()

    def lock(self, path: str) -> Held:
        name = _name(path)
        if name in self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked")
        self.locked.add(name)
        return Held(self, name)

    # --- faults -----------------------------------------------------------------------------------------------

    def fail(self, kind: str, name: str, code: int, *, after: int = 0) -> None:
        """Let the call of that kind (write, allocate, sync, ...) on names that contain `name` fail, once."""
        self.failing[kind, name] = [after, code]

    def _step(self, kind: str, name: str) -> None:
        self.before_step(kind, name)
        self.done[kind] += 1
        for (failing, part), plan in list(self.failing.items()):
            if failing == kind and part in name:
                plan[0] -= 1
                if plan[0] < 0:
                    del self.failing[failing, part]
                    self.done["failed " + kind] += 1
                    raise OSError(plan[1], f"{kind} {name}")

    def killed(self) -> RecordingFiles:
        """What a new process finds: everything, locks gone, and the cache still not on the disk."""
        inodes: dict[int, Inode] = {}

        def copy(inode: Inode) -> Inode:
            if id(inode) not in inodes:
                inodes[id(inode)] = Inode(
                    bytearray(inode.live), bytearray(inode.durable), list(inode.pending), dict(inode.stuck)
                )
            return inodes[id(inode)]

        other = RecordingFiles(sector=self.sector)
        other.names_live = {name: copy(inode) for name, inode in self.names_live.items()}
        other.names_durable = {name: copy(inode) for name, inode in self.names_durable.items()}
        other.pending_names = [
            (*step[:-1], copy(step[-1])) if isinstance(step[-1], Inode) else step for step in self.pending_names
        ]
        return other

    def crashed(self, random: Random, keep: float) -> dict[str, bytes]:
        """The files after a crash of the machine, each unsynced sector and name kept with that probability."""
        names = dict(self.names_durable)
        for step in self.pending_names:
            if random.random() < keep:
                _rename(names, step)
        contents: dict[int, bytes] = {}
        for inode in names.values():
            if id(inode) not in contents:
                contents[id(inode)] = self._crashed(inode, random, keep)
        return {name: contents[id(inode)] for name, inode in names.items()}

    def _crashed(self, inode: Inode, random: Random, keep: float) -> bytes:
        if not inode.pending and not inode.stuck:
            return bytes(inode.durable)
        data = bytearray(inode.durable)
        for sector in {position // self.sector for position in inode.stuck}:
            if random.random() < keep:
                for position, byte in inode.stuck.items():
                    if position // self.sector == sector:
                        apply(data, ("write", position, bytes([byte])))
        for step in inode.pending:
            for part in self._sectors(step):
                if random.random() < keep:
                    apply(data, part)
        return bytes(data)

    def _sectors(self, step: tuple) -> list[tuple]:
        if step[0] == "size":
            return [step]
        _, position, data = step
        cuts = [position, *range((position // self.sector + 1) * self.sector, position + len(data), self.sector)]
        ends = [*cuts[1:], position + len(data)]
        return [("write", a, data[a - position : b - position]) for a, b in zip(cuts, ends, strict=True)]

    @classmethod
    def holding(cls, contents: dict[str, bytes], *, sector: int = 16) -> RecordingFiles:
        """A disk with these files on it, everything synced."""
        files = cls(sector=sector)
        for name, data in contents.items():
            files.names_live[name] = files.names_durable[name] = Inode(bytearray(data), bytearray(data))
        return files

    def contents(self) -> dict[str, bytes]:
        """The files as a process sees them."""
        return {name: bytes(inode.live) for name, inode in self.names_live.items()}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _rename(names: dict[str, Inode], step: tuple) -> None:
    if step[0] == "link":
        names[step[1]] = step[2]
    elif step[0] == "unlink":
        names.pop(step[1], None)
    else:
        if names.get(step[1]) is step[3]:
            del names[step[1]]
        names[step[2]] = step[3]


class RecordingFile:
    """An open file of a `RecordingFiles`."""

    __slots__ = ("files", "inode", "name")

    def __init__(self, files: RecordingFiles, name: str, inode: Inode) -> None:
        self.files, self.name, self.inode = files, name, inode

    def read(self, size: int, position: int) -> bytes:
        if position < 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        return bytes(self.inode.live[position : position + size])

    def write(self, data: bytes, position: int) -> None:
        self.files._step("write", self.name)
        self._do(("write", position, data))

    def allocate(self, size: int) -> None:
        self.files._step("allocate", self.name)
        self._do(("size", size))

    def truncate(self, size: int) -> None:
        self.files._step("truncate", self.name)
        self._do(("size", size))

    def size(self) -> int:
        return len(self.inode.live)

    def sync(self) -> None:
        inode = self.inode
        try:
            self.files._step("sync", self.name)
        except OSError:
            for step in inode.pending:
                if step[0] == "write":
                    inode.stuck.update({step[1] + at: byte for at, byte in enumerate(step[2])})
            inode.pending = [step for step in inode.pending if step[0] == "size"]
            raise
        for step in inode.pending:
            apply(inode.durable, step)
            if step[0] == "write" and inode.stuck:
                for position in range(step[1], step[1] + len(step[2])):
                    inode.stuck.pop(position, None)
        inode.pending.clear()

    def close(self) -> None:
        """There is nothing to let go of."""

    def _do(self, step: tuple) -> None:
        self.inode.pending.append(step)
        apply(self.inode.live, step)


class Held:
    """A lock of a `RecordingFiles`."""

    def __init__(self, files: RecordingFiles, name: str) -> None:
        self.files, self.name = files, name

    def close(self) -> None:
        self.files.locked.discard(self.name)
