"""The read-write lock (P12)."""

from __future__ import annotations

from latchwork.coord import rwlock
from latchwork.coord.rwlock import RWLOCKS, ReadWriteLock
from latchwork.errors import FencedOut, LockUnavailable
from latchwork.store import Add, Key
from latchwork.store.model.expr import all_of, lacks, missing

from ..stage import Stage
from .common import KEY, patched, rule

RECORD = Key(RWLOCKS, "l")


def writer_among_readers():
    """P12.2: two who read again and again, so that one always does; and one who would write."""
    stage = Stage()

    def reader(store):
        lock = ReadWriteLock(store, "l")
        for _ in range(40):
            grant = lock.try_read()
            store.seams.sleep(0.2)
            if grant is not None:
                grant.release()

    def writer(store):
        try:
            return bool(ReadWriteLock(store, "l").write(5))
        except LockUnavailable:
            return False

    stage.act("a", reader)
    stage.act("b", reader, after=0.1)
    stage.act("c", writer, after=1.0)
    return stage.play().said["c"] is True


def reader_among_writers():
    """P12.2: writers of whom the next one always waits already; and one who would read."""
    stage = Stage()

    def writer(store):
        lock = ReadWriteLock(store, "l")
        for _ in range(6):  # nine seconds of all three
            with lock.write(30):
                store.seams.sleep(0.5)

    def reader(store):
        try:
            return bool(ReadWriteLock(store, "l").read(6))
        except LockUnavailable:
            return False

    for number, name in enumerate("abc"):
        stage.act(name, writer, after=0.05 * number)
    stage.act("r", reader, after=1.0)
    return stage.play().said["r"] is True


def paused_reader_derives():
    """P12.3: a reader is stopped past its lease before it writes what it derived; a writer has been there meanwhile."""
    stage = Stage({"a": {2: 3.0}})

    def reader(store):
        grant = ReadWriteLock(store, "l", lease=0.5).read(5)
        try:
            grant.operate(KEY, Add("n", 1))
        except FencedOut:
            return "refused"

    def writer(store):
        ReadWriteLock(store, "l").write(5).operate(KEY, Add("n", 1))

    stage.act("a", reader)
    stage.act("b", writer, after=0.1)
    return stage.play().said["a"] == "refused"


def writer_dies():
    """P12.4: a writer dies between two writes; who comes next sees that something was left."""
    stage = Stage()

    def writer(store):
        grant = ReadWriteLock(store, "l", lease=0.5).write(5)
        return grant.fence

    def next_one(store):
        lock = ReadWriteLock(store, "l")
        with lock.read(5) as seen:
            first = seen.abandoned
        with lock.write(5) as grant:
            told = grant.abandoned
            grant.clear_abandoned()
        with lock.read(5) as seen:
            return (first, told, seen.abandoned)

    stage.act("a", writer)
    stage.act("b", next_one, after=0.1)
    said = stage.play().said
    return said["b"] == (said["a"], said["a"], None)


NO_TURN = all_of(
    missing(rwlock.WRITER), rwlock._COUNT < 1000, lacks(rwlock.HOLDERS, rwlock.ID), rwlock.NOT_HELD_OFF
)  # fmt: skip
WITHOUT_TURN = rwlock._acquisition(rwlock.Mode.READ, rwlock._LAST_FENCE, NO_TURN)

RULES = [
    ("P12.2 wish", writer_among_readers, patched(rwlock._RWAcquisition, "_wish", lambda self, seen: None)),
    ("P12.2 turn", reader_among_writers, patched(rwlock, "_READ", WITHOUT_TURN)),
    ("P12.3 generation", paused_reader_derives, rule("rwlock", "a ratchet without the guard")),
    ("P12.3 ratchet", paused_reader_derives, rule("lock", "a guard without the ratchet")),
    ("P12.4 mark", writer_dies, rule("rwlock", "a dead writer leaves no mark")),
]
