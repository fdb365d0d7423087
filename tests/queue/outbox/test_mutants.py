"""The promises can fail: each of these broken outboxes must be caught."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown
from latchwork.queue import Outbox, PagedQueue
from latchwork.queue.outbox import messages as outbox_batch
from latchwork.queue.outbox import outbox
from latchwork.queue.paged import queue as paged
from latchwork.queue.paged.cursor import Cursor
from latchwork.queue.sharded.ledger.ledger import Outgoing
from latchwork.testing.stores import Crash
from tests.queue.paged.failing import eio_before
from tests.queue.paged.recording import RecordingFiles

from . import promises

MUTANTS = {}
"""Each, with the promise that it breaks. It is held against that one alone: to keep the others would cost much."""


def breaks(promise):
    def kept(mutant):
        MUTANTS[mutant] = promise
        return mutant

    return kept


def refusals() -> None:
    promises.a_refusal_amid_faults_neither_loses_nor_doubles_nor_reorders(["crash_after"], range(1, 40, 6))


def disk_errors() -> None:
    promises.a_disk_that_fails_at_any_call_neither_loses_nor_doubles([eio_before])


def outages() -> None:
    promises.a_fault_at_any_call_neither_loses_nor_doubles_nor_reorders(["request_lost"], range(1, 21, 3))


@breaks(promises.what_was_put_survives_the_machine)
def no_sync_before_put_returns(patch) -> None:
    patch.setattr(PagedQueue, "force", lambda self: None)


@breaks(promises.what_is_published_is_on_the_disk)
def publish_what_is_not_on_the_disk(patch) -> None:
    """Only the commit of the cursor syncs, which comes too late if the machine crashes before it."""
    batch = Outbox._forward_batch

    def forward_batch(self, **options):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._pq, "force", lambda: None)
            return batch(self, **options)

    patch.setattr(Outbox, "_forward_batch", forward_batch)


@breaks(promises.what_is_published_is_on_the_disk)
def let_go_before_it_is_published(patch) -> None:
    batch = outbox._batch

    def commit_first(cursor, **options):
        found = batch(cursor, **options)
        cursor.commit()
        return found

    patch.setattr(outbox, "_batch", commit_first)


@breaks(outages)
def no_rewind_after_a_failure(patch) -> None:
    patch.setattr(Cursor, "rewind", lambda self: None)


@breaks(disk_errors)
def stay_where_it_was_after_a_failed_commit(patch) -> None:
    """The file may have moved, and the next batch is published under another scope than a new process would take."""

    def rewind(self):
        self._read_to = self._committed

    patch.setattr(Cursor, "finish", lambda self: None)
    patch.setattr(Cursor, "rewind", rewind)


@breaks(disk_errors)
def take_a_failed_commit_for_done(patch) -> None:
    """The other way round: the file may not have moved."""
    keep = Cursor._keep

    def done(self, place):
        try:
            keep(self, place)
        except BaseException:
            self._committed, self._unsure, self._begun = place, False, None
            raise

    patch.setattr(Cursor, "_keep", done)


@breaks(disk_errors)
def believe_a_file_that_is_not_on_the_disk(patch) -> None:
    """After a failed commit memory takes what the file says, though its new name was never synced."""

    def finish(self):
        if self._unsure:
            self._committed = self._view.layout.cursors()[self.name]
            self._unsure, self._begun = False, None

    patch.setattr(Cursor, "finish", finish)


@breaks(disk_errors)
def open_what_is_not_on_the_disk(patch) -> None:
    """A new process goes on where the cursor's file says, though its new name was never synced."""
    recover = paged.recover

    def trusting(layout, page_size):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RecordingFiles, "sync_directory", lambda self, directory: None)
            return recover(layout, page_size)

    patch.setattr(paged, "recover", trusting)


@breaks(promises.rows_that_fail_alone_keep_their_order)
def take_what_is_unknown_for_done(patch) -> None:
    original = outbox.publish

    def hopeful(*args, **options):
        try:
            original(*args, **options)
        except OutcomeUnknown:
            return

    patch.setattr(outbox, "publish", hopeful)


@breaks(promises.what_is_published_is_on_the_disk)
def publish_without_the_ledger(patch) -> None:
    def plain(queue, name, entries, **_):
        waiting = [outbox_batch.unpack(entry, queue.codec) for entry in entries]
        for wave in outbox_batch.waves(waiting):
            payloads = [queue.codec.decode(message.data) for message in wave]
            queue.publish_many(payloads, keys=[message.key for message in wave])

    patch.setattr(outbox, "publish", plain)


@breaks(promises.what_is_published_is_on_the_disk)
def another_scope_with_each_attempt(patch) -> None:
    numbers = itertools.count()
    original = outbox.publish
    patch.setattr(
        outbox,
        "publish",
        lambda queue, name, entries, **options: original(queue, f"{name}{next(numbers)}", entries, **options),
    )


@breaks(promises.outboxes_of_one_name_stay_apart)
def a_scope_that_two_machines_share(patch) -> None:
    ledger = outbox_batch.Ledger

    def shared(queue, scope, *, ttl):
        outbox_name, page, position = scope.rsplit("/", 2)
        return ledger(queue, f"{outbox_name.rpartition('-')[0]}/{page}/{position}", ttl=ttl)

    patch.setattr(outbox_batch, "Ledger", shared)


@breaks(promises.what_was_put_survives_the_machine)
def forget_the_key(patch) -> None:
    patch.setattr(
        outbox_batch, "_outgoing", lambda message: Outgoing(msgspec.Raw(message.data.encode()), message.message_id)
    )


@breaks(refusals)
def all_of_a_key_at_once(patch) -> None:
    patch.setattr(outbox_batch, "waves", lambda waiting: [list(waiting)])


@breaks(disk_errors)
def batches_of_any_length(patch) -> None:
    lengths = itertools.cycle((1_000, 2, 5))
    batch = outbox._batch

    def some(cursor, **options):
        n = next(lengths)
        if n == 1_000:
            return batch(cursor, **options)
        return cursor.read(n), False

    patch.setattr(outbox, "_batch", some)


@breaks(refusals)
def what_is_held_back_is_in_memory_alone(patch) -> None:
    patch.setattr(outbox, "store_held", lambda layout, name, held: None)


@breaks(refusals)
def those_behind_a_refused_one_pass_it(patch) -> None:
    original = outbox.to_hold

    def refused_alone(batch, passed, held, codec, refused=()):
        return original(batch, [], held, codec, refused)[: len(held) + len(refused)]

    patch.setattr(outbox, "to_hold", refused_alone)


@breaks(refusals)
def publish_what_is_held_back_before_its_batch_is_over(patch) -> None:
    original = outbox.read_held

    def all_passed(layout, name, until):
        passed, held = original(layout, name, until)
        return passed + held, []

    patch.setattr(outbox, "read_held", all_passed)


@breaks(refusals)
def a_ledger_that_is_not_told_what_is_held_back(patch) -> None:
    original = outbox.publish
    patch.setattr(
        outbox,
        "publish",
        lambda queue, name, entries, *, without, **options: original(
            queue, name, [entry for entry in entries if entry not in without] or entries, **options
        ),
    )


@breaks(promises.what_waits_is_not_reclaimed)
def no_hold_on_the_pages(patch) -> None:
    """The cursor is made when something is forwarded for the first time."""
    original = Outbox.put_many

    def put_many(self, payloads, **options):
        if self._pq._cursors:
            return original(self, payloads, **options)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._pq, "cursor", lambda name: None)
            return original(self, payloads, **options)

    patch.setattr(Outbox, "put_many", put_many)


@breaks(promises.a_full_budget_refuses)
def a_budget_that_is_not_asked(patch) -> None:
    patch.setattr(Outbox, "_admit", lambda self, cursor, more: None)


@breaks(promises.objects_of_one_outbox_take_turns)
def no_turns(patch) -> None:
    class Open:
        def __enter__(self):
            return True

        def __exit__(self, *_):
            return None

        def acquire(self, *_, **__):
            return True

    init = Cursor.__init__

    def opened(self, *args, **options):
        init(self, *args, **options)
        self.turn = Open()

    patch.setattr(Cursor, "__init__", opened)


BROKEN = (AssertionError, pytest.fail.Exception, LatchworkError, Crash)
"""How a promise says that it is broken; a TypeError would say that the mutant is."""


def broken(promise, mutant) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        try:
            promise()
        except BROKEN as failure:
            print(f"{mutant.__name__}: {failure}")
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_caught(mutant, proved):
    assert broken(MUTANTS[mutant], mutant)
    proved("mutants", "outbox", seeded=1, caught=1)


def test_the_mutants_are_enough():
    assert len(MUTANTS) >= 22
