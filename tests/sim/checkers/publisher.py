"""What a publisher promises (docs/protocols P5, section *A publisher*)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faults.kinds import Kind

if TYPE_CHECKING:
    from ..workload.publisher import Publishers


def check(run: Publishers) -> None:
    """All promises of the publisher."""
    what_is_said_to_be_published_is_there(run)
    what_failed_is_nowhere(run)
    nothing_is_stored_twice(run)
    after_a_flush_all_is_known(run)
    no_more_waits_than_may(run)
    each_future_ends(run)


def what_is_said_to_be_published_is_there(run: Publishers) -> None:
    """A future says that a message is safe only once it was stored, and each such message comes."""
    for answer in run.history.named("answer"):
        if not answer.ok:
            continue
        when = run.stored.get(answer.args[0], [])
        run.require(
            when and when[0] < answer.order, "done only when the store has answered",
            f"{answer.args[0]} of {answer.actor} was said to be there, and was stored at {when}",
        )  # fmt: skip
        run.require(
            answer.args[0] in run.came, "what is said to be published is delivered", f"{answer.args[0]} never came"
        )


def what_failed_is_nowhere(run: Publishers) -> None:
    """An error that is not unknown means that the message was not published, nor one that was not taken."""
    for entry in run.history.named("answer", "take"):
        if entry.ok or entry.unknown:
            continue
        run.require(
            entry.args[0] not in run.stored, "an error means that nothing was published",
            f"{entry.args[0]} was stored, and {entry.name} said {entry.outcome}",
        )  # fmt: skip


def nothing_is_stored_twice(run: Publishers) -> None:
    """A group is never published again: each message is in one place, also one that is in doubt."""
    for message, when in run.stored.items():
        run.require(len(when) == 1, "nothing is published twice", f"{message} was stored {len(when)} times")


def after_a_flush_all_is_known(run: Publishers) -> None:
    """Once a flush or a close has said that all is known, all that was published before is."""
    for entry in run.history.named("flush", "close"):
        run.require(
            not (entry.ok and entry.result and entry.tag), "a flush waits for all that was published before",
            f"{entry.actor}: {entry.tag} are not known",
        )  # fmt: skip


def no_more_waits_than_may(run: Publishers) -> None:
    """In memory there are never more messages than the publisher was told."""
    for entry in run.history.named("take"):
        run.require(not entry.tag, "no more waits than may", f"{entry.actor}: {entry.tag} too many")


def each_future_ends(run: Publishers) -> None:
    """Where its process lives, each future is answered once, soon after faults have stopped."""
    answered = [answer.args[0] for answer in run.history.named("answer")]
    for entry in run.history.named("result"):
        run.require(
            entry.outcome != "WAIT_TIMEOUT" or run.happened(Kind.SUSPEND, Kind.PAUSE),
            "every future ends", f"{entry.args[0]} did not",
        )  # fmt: skip
    run.require(len(answered) == len(set(answered)), "a future is answered once", f"{answered}")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")
