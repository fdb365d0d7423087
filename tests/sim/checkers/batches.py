"""What a batch promises (docs/protocols P18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sharded

if TYPE_CHECKING:
    from ..workload.batches import Batches


def check(run: Batches) -> None:
    """All promises."""
    what_follows_is_published_once(run)
    nothing_follows_before_all_is_done(run)
    it_ends_once_faults_stop(run)
    it_counts_each_message_once(run)
    nothing_of_a_cancelled_batch_is_handed_out_or_follows(run)
    a_parked_message_is_told_once(run)
    its_results_are_those_of_its_messages(run)
    only_what_was_published_is_delivered(run)
    sharded.a_stale_receipt_acknowledges_nothing(run)
    sharded.pointers_never_go_back(run)
    sharded.a_later_leader_is_never_overwritten(run)
    sharded.drained_once_faults_stop(run)


def what_follows_is_published_once(run: Batches) -> None:
    """One message, whoever leads and dies."""
    run.require(len(run.followed) <= 1, "the follow-up comes exactly once", f"{run.followed}")


def nothing_follows_before_all_is_done(run: Batches) -> None:
    """When it comes, an acknowledgement of each message has begun whose publisher was told that it is safe."""
    when = min(run.followed.values(), default=float("inf"))
    begun = {entry.args[0] for entry in run.history.named("ack") if entry.called <= when}
    for publish in run.history.named("publish"):
        if publish.ok and when < float("inf"):
            run.require(
                set(publish.args[0]) <= begun, "nothing follows before all messages are done",
                f"{set(publish.args[0]) - begun} of {publish.actor} at {when:.3f}",
            )  # fmt: skip


def it_ends_once_faults_stop(run: Batches) -> None:
    """Whatever died: once it is closed, and what was published is done, it ends, and the follow-up is there."""
    run.require(
        run.progress.ended and (run.progress.cancelled or (run.progress.complete and run.followed)),
        "a batch ends once faults stop",
        f"{run.progress}, followed {run.followed}",
    )  # fmt: skip


def it_counts_each_message_once(run: Batches) -> None:
    """In the end as many are done as were published, and no fewer were than publishers were told."""
    safe = {payload for entry in run.history.named("publish") if entry.ok for payload in entry.args[0]}
    tried = [payload for entry in run.history.named("publish") for payload in entry.args[0]]
    run.require(
        run.progress.cancelled or len(safe) <= run.progress.done <= len(tried), "each message counts once",
        f"{run.progress.done} are done of {len(safe)} to {len(tried)}",
    )  # fmt: skip


def only_what_was_published_is_delivered(run: Batches) -> None:
    """And what follows."""
    published = {payload for entry in run.history.named("publish") for payload in entry.args[0]}
    published |= {"next", "parked"}
    for entry in run.history.named("receive"):
        run.require(set(entry.tag or ()) <= published, "only published messages are delivered", f"{entry.tag}")


def nothing_of_a_cancelled_batch_is_handed_out_or_follows(run: Batches) -> None:
    """A consumer that asks after the cancel gets none of it; what follows does not come, before or after."""
    done = [entry.returned for entry in run.history.named("cancel") if entry.ok and entry.result]
    if done:
        run.require(run.progress.cancelled, "who was told that the batch is cancelled finds it so", f"{run.progress}")
        for entry in run.history.named("receive"):
            late = entry.order > min(done) and set(entry.tag or ()) - {"next", "parked"}
            run.require(not late, "nothing of a cancelled batch is handed out", f"{late} at {entry.called:.3f}")
    run.require(
        not (run.progress.cancelled and run.followed), "nothing follows on a cancelled batch", f"{run.followed}"
    )


def its_results_are_those_of_its_messages(run: Batches) -> None:
    """Each message that a publisher was told of is there once, in its order, with what its handler returned.

    Whoever reads them meanwhile finds no result of another message, and none that changes.
    """
    payload_of: dict[str, str] = {}
    in_doubt: set[str] = set()
    for publish in run.history.named("publish"):
        if publish.ok:
            payload_of |= dict(zip(publish.result, publish.args[0], strict=True))
        else:
            in_doubt |= set(publish.args[0])
    in_doubt -= set(payload_of.values())
    for read in run.history.named("results"):
        if not read.ok:
            continue
        # One whose publishing raised may be done nevertheless, and its id may be noted nowhere (P18.14).
        unnamed = [one for one in read.result if one.message_id is None]
        few = f"{len(unnamed)} of {in_doubt} have none"
        run.require(len(unnamed) <= len(in_doubt), "the id of each message is known that a publisher was told of", few)
        for one in unnamed:
            of = f"{one.state.value} {one.error or one.value}"
            over = one.state.value in ("done", "gone") and one.error is not None
            run.require(over, "what has no id is told once it is over, without a result", of)
        named = [one for one in read.result if one.message_id is not None]
        ids = [one.message_id for one in named]
        run.require(payload_of.keys() <= set(ids), "who has read all has every message", f"{payload_of} {ids}")
        run.require(len(ids) == len(set(ids)), "each message has one result", f"{ids}")
        for one in named:
            of = f"{one.message_id}: {one.state.value} {one.error or one.value}"
            known = payload_of.get(one.message_id)
            run.require(one.error is not None or known in (None, one.value), "a result is its message's own", of)
            began = read.actor != "operator" or run.progress.cancelled or not run.drained
            run.require(began or one.error is None, "each message that is done has its result", of)
            # A message is found by its trace, which may lack a place whose row was lost (P26), until it is done.
            comes = one.state.value in ("ready", "running", "delayed")
            told = one.error and one.error.code in ("WAIT_TIMEOUT", "CANCELLED")
            run.require(not comes or told, "one that comes is waited for", of)
            lost = one.state.value in ("expired", "unknown") and not began
            run.require(not lost, "no message that was done is taken for lost", of)
    reads = run.history.named("results")
    if reads and not run.progress.cancelled:
        found = [one.message_id for one in reads[-1].result]
        run.require(len(found) <= run.progress.published, "no result without a message", f"{found} {run.progress}")
        for publish in run.history.named("publish"):
            if publish.ok and not publish.actor.startswith("'rep"):
                places = [found.index(one) for one in publish.result if one in found]
                run.require(len(places) == len(publish.result), "each message is there", f"{publish.result} {found}")


def a_parked_message_is_told_once(run: Batches) -> None:
    """However many are parked, and whoever leads and dies."""
    run.require(len(run.told) <= 1, "that a message was parked is told once", f"{run.told}")
