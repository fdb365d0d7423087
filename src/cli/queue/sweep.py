"""`latchwork queue sweep`: sweep the queues of a client once, or do all of their upkeep."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import Leadership, LeaseElection
from ...errors import LatchworkError, WaitTimeout
from ...observe.snapshot import election_now
from ...plain import shown_time
from ...queue import QueueRegistry, Sweeper, SweepReport
from ...queue.sharded.upkeep.upkeep import election_name, upkeep_of
from ...queue.sharded.workers import short_name
from ..coord.elections import stepped_down_by
from ..options import Client, Farm, checked_every
from ..session import Session, note
from .arguments import no_queues, registry_of

_SOONER = "what a worker that died had in hand is back at once by: latchwork queue recover QUEUE"


def sweep(
    context: typer.Context,
    client: Client,
    election: Annotated[str | None, typer.Option(help="the election [default: CLIENT-sweeper]")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="seconds to wait to be elected [default: 30; no limit with --every]")
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="stay, and sweep again every this many seconds, 1 to 86400")
    ] = None,
    farm: Farm = None,
) -> None:
    """Sweep every queue of the client once, if elected. Exit code 1 if a part failed.

    While another process leads, this one is not elected, and the exit code is 4. If your own sweepers use another
    election than CLIENT-sweeper, name it with --election. One sweep brings back messages that were abandoned, but it
    passes no slot whose message is missing: for that, one process has to watch the slot for the queue's whole sweep
    duration. A service with a Sweeper does that, and so does --every, which sweeps until Ctrl-C. With --every and
    without --election it does all the upkeep that a worker does: it also delivers delayed messages, retries and
    schedules.

    Example: latchwork queue sweep --client shop --timeout 60
    """
    session: Session = context.obj
    pause = None if every is None else checked_every(every, least=1)
    registry = registry_of(session, client, farm)
    sweeper = _Sweep(session, registry, election, stays=pause is not None)
    if pause is None:
        if not any(registry.scan(active=None)):
            raise no_queues(session, client, farm)
        sweeper.once(30 if timeout is None else timeout)
    else:
        session.prints_lines()
        sweeper.for_ever(timeout, pause)


class _Sweep:
    """One sweeper for as long as the command runs, because it remembers when it first saw each mark."""

    def __init__(self, session: Session, registry: QueueRegistry, election: str | None, *, stays: bool) -> None:
        self._session, self._registry = session, registry
        # Who leads for long in the election of the workers keeps them from the upkeep, so it does all of that.
        self._upkeep = upkeep_of(registry) if stays and election is None else None
        candidate = self._upkeep.election.candidate if self._upkeep is not None else None
        self._contest = LeaseElection(session.store, election or election_name(registry.client_id), candidate=candidate)
        self._sweeper = Sweeper(registry, self._contest)

    def once(self, timeout: float) -> None:
        """Sweep, once it is elected, and exit with 1 if a part failed."""
        try:
            well = self._contest.run(lambda _: self._sweep_once(), timeout=timeout)
        except WaitTimeout as failure:
            raise WaitTimeout(f"{failure}: {self._why_not()}", **failure.details) from None
        if not well:
            raise typer.Exit(1)

    def _why_not(self) -> str:
        """Return why this command was not elected, and what to do instead."""
        leader, _ = election_now(self._session.store, self._contest.name)
        if leader is not None and leader.leads and stepped_down_by(leader) is None:
            return f"{short_name(leader.name)} leads, and sweeps every queue; {_SOONER}"
        lease = leader.lease if leader is not None and leader.held else self._contest.lease
        return (
            "nobody leads now. A leader that died, or was made to step down, is replaced once its lease was seen "
            f"unchanged for {lease:g} s: give --timeout {2 * lease:g} or more. And a sweep takes only messages that "
            f"nobody has touched for the queue's whole sweep duration; {_SOONER}"
        )

    def for_ever(self, timeout: float | None, every: float) -> None:
        """Sweep while it is elected, again and again, also after the store was away, and do the rest of the upkeep."""

        def lead(leadership: Leadership) -> None:
            if self._upkeep is not None:
                self._upkeep.begin(leadership, sweeps=False)
            while not leadership.lost.is_set():
                try:
                    self._sweep_once()
                except LatchworkError as failure:
                    note(f"{failure} [{failure.code}]; the next sweep is in {every:g} s")
                leadership.lost.wait(every)

        while True:
            self._contest.run(lead, timeout=timeout)

    def _sweep_once(self) -> bool:
        report = self._sweeper.run_once()
        names = ("scanned", "acked", "rehomed", "live", "tombstones", "refused")
        counts = {name: getattr(report, name) for name in names}
        due = self._first_due(report)
        lines = [str(report)]
        if due is not None:
            when = f"the first is due within {shown_time(due)}, if its handler is gone"
            lines.append(f"{when}: a sweep then brings it back")
        self._session.say(
            *lines, epoch=report.epoch, queues=report.queues, **counts,
            first_due_s=None if due is None else round(due, 1), failures=report.failures,
        )  # fmt: skip
        return report.ok

    def _first_due(self, report: SweepReport) -> float | None:
        """Return in how many seconds the first of the messages in flight counts as abandoned; None if there are none.

        One call for each queue that has some.
        """
        now, durations, due = self._registry.store.seams.wall(), dict[str, float](), list[float]()
        for shard in report.shards:
            if not shard.live and not shard.stamped:
                continue
            if shard.queue not in durations:
                durations[shard.queue] = self._registry.get(shard.queue).config.sweep_duration.total_seconds()
            since = [one.stamped / 1000 for one in shard.live_messages] + ([now] if shard.stamped else [])
            due += [max(0.0, one + durations[shard.queue] - now) for one in since]
        return min(due, default=None)
