"""The pages of `latchwork top`, as tables of the data of the feed; problems come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any

from ...errors import Misconfigured
from ...observe.audit import DONE, audit_of
from ...observe.findings import OK, PROBLEM, Finding, findings_of
from ...observe.snapshot import ClientState, QueueState, Snapshot
from ...plain import counted, exact_time, one_line, shown_time
from ...queue import Message, QueueRegistry, ScheduleState, ShardedQueue
from ...queue.outbox.lag import stored_lag
from ...queue.outbox.outbox import OutboxLag
from ...queue.sharded.history import MINUTE, Minute, history, rates
from ...queue.sharded.sides import MOST_READ, SIDES, look_at
from ...queue.sharded.slots import Slot
from ...queue.sharded.stats import Side
from ...queue.sharded.stream import StreamState, state_of
from ...queue.sharded.workers import WorkerReport, short_name
from ..finding_lines import block_of
from . import coord
from .feed import Feed, Fetched
from .table import BAD, DASH, FAINT, PLAIN, TITLE, WARN, Column, Line, Row, Table, age, row, spark, text, timed

MESSAGES = 200
"""Messages that a page has at most."""
COORD = {
    "latches": coord.latches, "locks": coord.locks, "elections": coord.elections, "semaphores": coord.semaphores,
}  # fmt: skip
NOTHING_NOTED = "nothing was noted (the upkeep notes each minute, while a worker runs)"
COORD_EVERY, MESSAGES_EVERY, HISTORY_EVERY, SCHEDULES_EVERY = 5.0, 5.0, 30.0, 5.0
"""Seconds between two reads of what one page alone needs."""


def known(feed: Feed) -> Iterator[tuple[ClientState, Snapshot]]:
    """Yield the clients of which figures are known."""
    for one in feed.found.clients if feed.found else ():
        if one.taken is not None:
            yield one, one.taken


def queue_in(feed: Feed, key: Sequence[str]) -> tuple[Snapshot, QueueState] | None:
    """Return a queue, as (farm, client, name) names it; None if it is not there."""
    for one, taken in known(feed):
        for queue in taken.queues:
            if (one.farm, one.client, queue.name) == tuple(key):
                return taken, queue
    return None


def style_of(findings: Sequence[Finding]) -> str:
    """Return the style of a thing with these findings."""
    states = {one.state for one in findings}
    return BAD if PROBLEM in states else WARN if states - {OK} else PLAIN


def _finding_lines(found: Finding, width: int) -> list[Line]:
    """Return the lines of a finding, the first one in its style."""
    lines = block_of(found, width)
    return [Line(one_line(line), FAINT if n else style_of([found])) for n, line in enumerate(lines)]


def _failed(name: str, fetched: Fetched) -> list[Line]:
    """Return why something could not be read, in a line; none if it could."""
    return [Line(one_line(f"{name}: {fetched.failure}"), BAD)] if fetched.failure else []


# ---- everything


def overview(feed: Feed, width: int) -> Table:
    """Return the findings about everything, worst first, and below them a row for each client."""
    found = [one for _, taken in known(feed) for one in findings_of(taken)]
    notes = [line for one in found for line in _finding_lines(one, width)]
    rows = [_client(one, taken) for one, taken in known(feed)]
    columns = (
        Column("client", right=False), Column("farm", 4, right=False), Column("queues", 5), Column("ready"),
        Column("failing", 2), Column("parked", 1), Column("workers", 3), Column("upkeep", 6, right=False),
    )  # fmt: skip
    away = dict.fromkeys(one.farm for one in (feed.found.clients if feed.found else ()) if one.away)
    if away:  # what is wrong there now is not known
        notes.append(Line(one_line(f"nobody can say what is wrong in {', '.join(away)}: its store is away"), BAD))
    elif not notes and rows:
        notes.append(Line("nothing is wrong"))
    return Table(columns, tuple(rows), tuple(notes), "no client has queues here")


def _client(one: ClientState, taken: Snapshot) -> Row:
    depths = [queue.stats.depth for queue in taken.queues]
    workers = {worker.worker for queue in taken.queues for worker in queue.at_work}
    upkeep = "an election is under way" if taken.candidates else "NOBODY"
    if taken.leader is not None and taken.leader.leads:
        upkeep = short_name(taken.leader.name)
    return row(
        (one.farm, one.client),
        (one.client, one.farm, len(taken.queues), sum(depth.ready for depth in depths),
         sum(depth.retrying + depth.sideline for depth in depths), sum(depth.parked for depth in depths),
         len(workers), upkeep),
        style_of(findings_of(taken)),
    )  # fmt: skip


def farms(feed: Feed) -> Table:
    """Return a row for each farm and client: the store, how old its figures are, and whether it answers."""
    rows = [
        row((one.farm, one.client), (one.farm, one.client or DASH, one.store, timed(one.age), one.away or "answers"),
            BAD if one.away else PLAIN)
        for one in (feed.found.clients if feed.found else ())
    ]  # fmt: skip
    columns = (
        Column("farm", right=False), Column("client", 2, right=False), Column("store", 3, right=False),
        Column("figures of", 1), Column("store says", right=False),
    )  # fmt: skip
    notes = []
    if feed.found:
        process = feed.found.process
        dead = ", ".join(f"{name}: {kind}" for name, kind in process.dead_threads.items())
        notes.append(Line(f"this process ({process.name}): {f'THREADS DIED: {dead}' if dead else 'in order'}"))
    return Table(columns, tuple(rows), tuple(notes), "no store was read yet")


def workers(feed: Feed) -> Table:
    """Return a row for each process and queue that it works on."""
    rows = []
    for one, taken in known(feed):
        for queue in taken.queues:
            for worker in queue.workers:
                leads = taken.leader is not None and taken.leader.leads and taken.leader.name == worker.worker
                state, style = _stands(worker)
                rows.append(row(
                    (one.farm, one.client, queue.name, worker.worker),
                    (short_name(worker.worker), queue.name, state + (", leads" if leads else ""), worker.threads,
                     worker.running, worker.acked, worker.failed, timed(worker.ago)),
                    style,
                ))  # fmt: skip
    columns = (
        Column("worker", right=False), Column("queue", right=False), Column("state", 1, right=False),
        Column("threads", 6), Column("running", 3), Column("done/min", 4), Column("failed/min", 2),
        Column("report", 5),
    )  # fmt: skip
    return Table(columns, tuple(rows), empty="no process reports")


# ---- queues


def queues(feed: Feed, bars: str) -> Table:
    """Return a row for each queue, with its findings, and how many messages were ready at the last looks."""
    rows = []
    for one, taken in known(feed):
        found = findings_of(taken)
        for queue in taken.queues:
            place = one.farm, one.client, queue.name
            mine = [finding for finding in found if queue.name in finding.queues]
            kinds = dict.fromkeys(finding.kind for finding in mine if finding.state != OK)
            depth = queue.stats.depth
            trend = spark(list(feed.ready.get(place, ())), 12, bars)
            rows.append(row(
                place,
                (queue.name, one.client, depth.ready, queue.in_rate, queue.out_rate, timed(queue.stats.oldest_age),
                 len(queue.at_work), depth.delayed - depth.retrying, depth.retrying, depth.sideline, depth.parked,
                 (trend, 0.0), ", ".join(kinds)),
                style_of(mine),
            ))  # fmt: skip
        rows += [
            row(None, (name, one.client, *[None] * 10, f"unreadable: {why}"), BAD)
            for name, why in taken.unreadable.items()
        ]
    several = len({one.client for one, _ in known(feed)}) > 1
    columns = (
        Column("queue", right=False), Column("client", 1 if several else 20, right=False), Column("ready"),
        Column("in/s", 7), Column("out/s", 6), Column("oldest", 3), Column("workers", 2), Column("delayed", 11),
        Column("retrying", 8), Column("sideline", 9), Column("parked", 4), Column("lately", 5, right=False),
        Column("wrong", 1, right=False),
    )  # fmt: skip
    return Table(columns, tuple(rows), empty="no queue")


def queue(feed: Feed, key: Sequence[str], width: int, bars: str, *, days: float) -> Table:
    """Return one queue: settings, sides, history, and below that its workers."""
    table = queue_now(feed, key, width)
    if not table.notes:
        return table
    return replace(table, notes=(*table.notes, *_history(history_of(feed, key, days), width, bars, days)))


def history_of(feed: Feed, key: Sequence[str], days: float) -> Fetched:
    """Return the minutes of a queue's history."""
    return feed.fetched(("history", *key, str(days)), lambda: history(handle_of(feed, key), days=days), HISTORY_EVERY)


def queue_now(feed: Feed, key: Sequence[str], width: int) -> Table:
    """Return one queue without its history; without notes if there is none."""
    there = queue_in(feed, key)
    if there is None:
        return Table((Column("queue", right=False),), (), empty=one_line(f"there is no queue {key[-1]} any more"))
    taken, one = there
    notes = [*_settings(taken, one), *_sides(one.stats.ready, one.stats.sideline, one.stats.parked)]
    depth = one.stats.depth
    notes.append(Line(f"delayed   {depth.delayed - depth.retrying:>9,}   tried again later {depth.retrying:>9,}"))
    for found in findings_of(taken):
        if one.name in found.queues:
            notes += _finding_lines(found, width)
    rows = tuple(_worker(worker) for worker in one.workers)
    columns = (
        Column("worker", right=False), Column("state", right=False), Column("threads", 3), Column("running", 1),
        Column("done/min", 2), Column("failed/min"), Column("failed why", 5, right=False), Column("report", 4),
    )  # fmt: skip
    return Table(columns, rows, tuple(notes), "no process works on it")


def _stands(worker: WorkerReport) -> tuple[str, str]:
    """Return how a worker stands, in a word or two, and in which style it is shown."""
    if worker.is_silent:
        return "DEAD" if worker.settled else "DEAD or hangs", BAD
    if worker.is_saturated:
        return f"TAKES NONE: {worker.hung} hang", BAD
    if worker.is_overdue:
        return "overdue", WARN
    if worker.drains is not None:
        return f"drains, {shown_time(worker.drains)}", WARN
    return (f"works, {worker.hung} hang", WARN) if worker.hung else ("works", PLAIN)


def _worker(worker: WorkerReport) -> Row:
    state, style = _stands(worker)
    why = ", ".join(f"{reason} {n}" for reason, n in worker.reasons.items())
    return row(
        (worker.worker,),
        (short_name(worker.worker), state, worker.threads, worker.running, worker.acked, worker.failed, why,
         timed(worker.ago)),
        style,
    )  # fmt: skip


def _settings(taken: Snapshot, one: QueueState) -> Iterator[Line]:
    live, who = one.live, f" by {one.live.changed_by}" if one.live.changed_by else ""
    since = f", {shown_time(taken.at - live.changed / 1000)} ago" if live.changed else ""
    if one.paused:
        yield Line(one_line(f"PAUSED{who}{since}"), WARN)
    else:
        yield Line(
            one_line(f"threads in each worker: {live.concurrency}{f' (set{who}{since})' if live.changed else ''}")
        )
    what = [
        "is retried" if one.retries else "is NOT retried",
        f"published {one.stats.depth.loaded:,}", f"received {one.stats.depth.fired:,}",
        f"expired {one.stats.depth.expired:,}",
    ]  # fmt: skip
    swept = one.stats.last_sweep.success
    what.append(f"swept {shown_time(max(0.0, taken.at - swept / 1000))} ago" if swept else "never swept")
    yield Line("; ".join(what) + ("" if one.stats.active else "; INACTIVE: nothing can be published"))


def _sides(*sides: Side) -> Iterator[Line]:
    for name, side in zip(("ready", "sideline", "parked"), sides, strict=True):
        left = f", the first expires in {shown_time(side.left)}" if side.left is not None else ""
        old = f"   the oldest waits for {shown_time(side.oldest_age)}" if side.oldest_age is not None else ""
        waiting = f"{'' if side.is_exact else 'at most '}{side.waiting:,}"
        yield Line(f"{name:<9} {waiting:>9}{old}{left}", BAD if side.is_half_over and side.waiting else PLAIN)


def registry_of(feed: Feed, key: Sequence[str]) -> QueueRegistry:
    """Return the registry of a client in a farm."""
    farm, client, *_ = key
    return QueueRegistry(feed.stores[farm], client, farm_id=farm)


def handle_of(feed: Feed, key: Sequence[str]) -> ShardedQueue:
    """Return the queue that (farm, client, name) names. One call. Raises `NotFound`."""
    return registry_of(feed, key).get(key[2])


@dataclass(frozen=True, slots=True)
class Drawn:
    """A history in so many columns, each the largest value of its time; None = not known.

    marks: of each column `L` where another process leads, `w` where a worker began, else a blank.
    step: seconds in a column.
    end: when the last column ends, in seconds since the epoch.
    """

    lines: dict[str, list[float | None]]
    marks: str
    step: float
    end: int
    reasons: Counter[str]

    @property
    def why(self) -> str:
        """Why messages failed, the most frequent reason first; empty if none did."""
        return ", ".join(f"{reason} {n:,}" for reason, n in self.reasons.most_common())


def drawn(minutes: Sequence[Minute], columns: int, days: float) -> Drawn:
    """Return the minutes in columns; there must be some."""
    end = minutes[-1].at
    begin, step = end - days * 86_400, days * 86_400 / columns
    lines: dict[str, list[float | None]] = {name: [None] * columns for name in ("ready", "in/s", "out/s", "failed/min")}
    marks = [" "] * columns
    before: Minute | None = None
    reasons = Counter[str]()
    for minute, (came, went) in zip(minutes, rates(minutes), strict=True):
        n = min(columns - 1, max(0, int((minute.at - begin) / step)))
        for name, value in (("ready", minute.ready), ("in/s", came), ("out/s", went), ("failed/min", minute.failed)):
            if value is not None:
                lines[name][n] = max(lines[name][n] or 0, value)
        if before is not None and before.epoch != minute.epoch:
            marks[n] = "L"
        elif minute.joined and marks[n] == " ":
            marks[n] = "w"
        before = minute
        reasons.update(minute.reasons)
    return Drawn(lines, "".join(marks), step, end, reasons)


def _history(fetched: Fetched, width: int, bars: str, days: float) -> Iterator[Line]:
    """Yield the last day, or two weeks, as bars; a column is blank where nothing was noted."""
    title = title_of(days)
    if fetched.failure or fetched.value is None:
        yield Line(f"{title}: {fetched.failure or 'being read'}", FAINT)
        return
    if not fetched.value:
        yield Line(f"{title}: {NOTHING_NOTED}", FAINT)
        return
    columns = max(10, width - 31)
    found = drawn(fetched.value, columns, days)
    legend = " (w: a worker began, L: another leads)" if found.marks.strip() else ""
    yield Line(f"{title}, {shown_step(found.step)} a column{legend}:", TITLE)
    for name, values in found.lines.items():
        most = max((value for value in values if value is not None), default=None)
        yield Line(f"{name:<10} {spark(values, columns, bars)} at most {text(most)}")
    if legend:
        yield Line(f"{'':<10} {found.marks}", FAINT)
    if found.why:
        yield Line(f"failed: {found.why}")


def title_of(days: float) -> str:
    """Return the time that a history is of."""
    return "the last day" if days <= 1 else f"the last {days:g} days"


def shown_step(seconds: float) -> str:
    """Return the time that a column stands for."""
    return exact_time(timedelta(seconds=max(MINUTE, round(seconds / MINUTE) * MINUTE)))


# ---- messages


@dataclass(frozen=True, slots=True)
class Found:
    """Messages of a page. after: where the next page begins; more: whether there is more to look at."""

    rows: tuple[Row, ...]
    after: Slot | None = None
    more: bool = False


MESSAGE_COLUMNS = (
    Column("message", right=False), Column("side", 20, right=False), Column("age", 2), Column("attempts", 4),
    Column("due", 5, right=False), Column("reason", right=False), Column("error", 1, right=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of the messages of one side of a queue. It reads at most 10,000 records, and says if there are more.

    wanted: only of this id, looked for in every side.
    match: only those that `look_at` finds with this.
    after: where the page before ended.
    """

    key: Sequence[str]
    side: str
    wanted: str = ""
    match: Mapping[str, Any] = field(default_factory=dict)
    after: Slot | None = None

    def table(self, feed: Feed) -> Table:
        """Return the messages, with what could not be looked at."""
        fetched = self.fetched(feed)
        found: Found = fetched.value or Found(())
        columns = MESSAGE_COLUMNS
        if self.wanted:
            columns = (columns[0], replace(columns[1], rank=3), *columns[2:])
        empty = f"no message of id {self.wanted!r}" if self.wanted else f"nothing {self.side}"
        empty = "being read" if fetched.value is None else empty
        notes = [Line(one_line(fetched.failure), BAD)] if fetched.failure else []
        if found.more:
            which = f"{len(found.rows):,}" if self.after else f"the first {len(found.rows):,}"
            go_on = ", or go on" if found.after else ""
            looked = f"{which} of more; a page looks at {MOST_READ:,} records at most"
            notes.append(Line(f"{looked}. Look an id up, or narrow the filter{go_on}", FAINT))
            empty = f"{empty} in the {MOST_READ:,} records that were looked at; there are more"
        return Table(columns, found.rows, tuple(notes), one_line(empty))

    def fetched(self, feed: Feed) -> Fetched:
        """Return what the page shows, a `Found`."""
        what = ("messages", *self.key, self.side, self.wanted, repr(self.match), repr(self.after))
        return feed.fetched(what, lambda: self._read(feed), MESSAGES_EVERY)

    def _read(self, feed: Feed) -> Found:
        queue, now = handle_of(feed, self.key), feed.seams.wall()
        if not self.wanted:
            found = look_at(queue, self.side, MESSAGES, **self.match, after=self.after)
            rows = tuple(message_row(self.side, message, now) for message in found.messages)
            return Found(rows, found.after if found.more else None, found.more)
        most = MOST_READ // len(SIDES)
        looks = {one: look_at(queue, one, MESSAGES, message_id=self.wanted, most=most) for one in SIDES}
        rows = tuple(message_row(one, message, now) for one, found in looks.items() for message in found.messages)
        return Found(rows[:MESSAGES], more=any(found.more for found in looks.values()))


def message_row(side: str, message: Message, now: float) -> Row:
    """Return the row of a message of this side. now: seconds since the epoch."""
    return row(
        (side, message.message_id),
        (message.published_as or message.message_id, side, timed(now - message.enqueued_at.timestamp()),
         message.attempts, message.not_before.isoformat(timespec="seconds") if message.not_before else None,
         message.reason, message.last_error),
    )  # fmt: skip


# ---- schedules and batches


def schedules(feed: Feed) -> Table:
    """Return the schedules and the open batches of every client."""
    rows: list[Row] = []
    notes: list[Line] = []
    for one, taken in known(feed):
        key = one.farm, one.client
        fetched = feed.fetched(("schedules", *key), partial(_read_schedules, feed, key, taken), SCHEDULES_EVERY)
        rows += fetched.value or ()
        notes += _failed(one.client, fetched)
    columns = (
        Column("kind", right=False), Column("name", right=False), Column("queue", 1, right=False),
        Column("next, or done", right=False), Column("what", 2, right=False), Column("last", 4),
        Column("missed", 3),
    )  # fmt: skip
    return Table(columns, tuple(rows), tuple(notes), "no schedule and no open batch")


def _read_schedules(feed: Feed, key: tuple[str, str], taken: Snapshot) -> list[Row]:
    registry = registry_of(feed, key)
    rows = [_schedule(key, one) for one in registry.schedule_states()]
    for state in taken.queues:
        if state.group_of is not None:
            continue
        for batch in registry.get(state.name).list_batches():
            progress = batch.progress()
            done = f"{progress.published - progress.waiting:,} of {progress.published:,} done"
            what = ("closed" if progress.closed else "open") + (
                f", {progress.parked} parked" if progress.parked else ""
            )
            cells = ("batch", batch.name, state.name, done, what, None, None)
            rows.append(row((*key, "batch", batch.name), cells, WARN if progress.parked else PLAIN))
    return rows


def _schedule(key: tuple[str, str], state: ScheduleState) -> Row:
    """Return the row of a schedule; the ticks that nobody has published are `missed`."""
    schedule, now = state.schedule, state.now
    what = schedule.in_words + (f" ({one_line(schedule.cron)})" if schedule.cron else "")
    last = timed((now - state.settled).total_seconds() if state.settled else None)
    style = PLAIN
    if state.paused is not None:
        who = f" by {state.paused_by}" if state.paused_by else ""
        when, missed, style = f"PAUSED{who} for {shown_time((now - state.paused).total_seconds())}", None, WARN
    else:
        try:
            following = next(islice(schedule.ticks(now), 1), None)
            when = f"in {shown_time((following - now).total_seconds())}" if following else DASH
            missed = state.overdue()
            style = BAD if missed else PLAIN
        except Misconfigured:
            when, missed = f"this machine lacks {schedule.tz}", None
    place = (*key, "schedule", schedule.name)
    return row(place, ("schedule", schedule.name, schedule.queue, one_line(when), what, last, missed), style)


def outcomes(rows: Sequence[tuple[str, str]], said: str) -> Table:
    """Return the outcome of each message of an action on many; messages that are not done come first."""
    there = [row((name,), (name, outcome), PLAIN if outcome == "done" else WARN) for name, outcome in rows]
    there.sort(key=lambda one: one.style == PLAIN)
    columns = Column("message", right=False), Column("outcome", right=False)
    return Table(columns, tuple(there), (Line(one_line(said)),), "nothing was chosen")


# ---- what Spark reads, and what producers keep


def streams(feed: Feed) -> Table:
    """Return the queues and groups that Spark streams read: whose they are, and how far behind."""
    rows: list[Row] = []
    notes: list[Line] = []
    for one, taken in known(feed):
        for queue in taken.queues:
            if not queue.stats.is_streamed:
                continue
            key = one.farm, one.client, queue.name
            read = partial(lambda place: state_of(handle_of(feed, place).pointers), key)
            fetched = feed.fetched(("stream", *key), read, SCHEDULES_EVERY)
            notes += _failed(queue.name, fetched)
            rows += [_stream(key, queue, fetched.value, taken.at)] if fetched.value else []
    columns = (
        Column("queue", right=False), Column("client", 5, right=False), Column("stream", right=False),
        Column("lag"), Column("oldest", 1), Column("last batch", 2), Column("shards", 4),
    )  # fmt: skip
    return Table(columns, tuple(rows), tuple(notes), "no stream reads a queue")


def _stream(key: Sequence[str], queue: QueueState, state: StreamState, now: float) -> Row:
    who = ", ".join(state.owners) or "nobody any more"
    last = timed(None if state.acked is None else max(0.0, now - state.acked / 1000))
    stays = state.lag > 0 and len(state.owners) != 1
    return row(
        tuple(key),
        (queue.name, key[1], who, state.lag, timed(queue.stats.oldest_age), last, state.shards),
        BAD if queue.stats.ready.is_half_over and state.lag else WARN if stays else PLAIN,
    )


def outboxes(feed: Feed) -> Table:
    """Return the outboxes that were named: what waits in their files, on this machine."""
    rows: list[Row] = []
    for given in feed.outboxes:
        directory, prefix, name = given
        fetched = feed.fetched(("outbox", *given), partial(stored_lag, *given, seams=feed.seams), COORD_EVERY)
        lag: OutboxLag | None = fetched.value
        wrong = fetched.failure or (f"{lag.held} held back" if lag and lag.held else None)
        cells = (prefix, name, directory, lag.messages if lag else None, lag.bytes if lag else None,
                 timed(lag.seconds if lag and lag.messages else None), wrong)  # fmt: skip
        rows.append(row(given, cells, BAD if wrong else PLAIN))
    columns = (
        Column("outbox", right=False), Column("cursor", 5, right=False), Column("directory", 4, right=False),
        Column("waiting"), Column("bytes", 3), Column("oldest", 1), Column("wrong", right=False),
    )  # fmt: skip
    notes = [Line("files of this machine, whether their producer runs or not", FAINT)] if rows else []
    return Table(columns, tuple(rows), tuple(notes), "no outbox was named: --outbox DIRECTORY:PREFIX, where it is")


def coordination(feed: Feed, kind: str) -> Table:
    """Return latches, locks, elections or semaphores of every farm."""
    rows: list[Row] = []
    notes: list[Line] = []
    columns: tuple[Column, ...] = (Column(kind, right=False),)
    empty = f"no {kind}"
    for farm, store in feed.stores.items():
        fetched = feed.fetched((kind, farm), partial(COORD[kind], store), COORD_EVERY)
        notes += _failed(farm, fetched)
        if fetched.value is not None:
            columns, empty = fetched.value.columns, fetched.value.empty
            rows += [replace(one, key=(farm, *one.key)) for one in fetched.value.rows if one.key is not None]
        elif not fetched.failure:
            empty = "being read"
    return Table(columns, tuple(rows), tuple(notes), empty)


def summary(feed: Feed) -> str:
    """Return how much there is, in a few words."""
    found = [taken for _, taken in known(feed)]
    queues = [queue for taken in found for queue in taken.queues]
    ready = sum(queue.stats.depth.ready for queue in queues)
    return f"{counted(len(found), 'client')}, {counted(len(queues), 'queue')}, {ready:,} ready"


def oldest(feed: Feed) -> str:
    """Return how old the oldest figures on the screen are."""
    ages = [one.age for one in feed.found.clients if one.age is not None] if feed.found else []
    return age(max(ages)) if ages else DASH


def audit(feed: Feed) -> Table:
    """Return what people have done in every farm, the newest first."""
    rows: list[Row] = []
    notes: list[Line] = []
    for farm, store in feed.stores.items():
        fetched = feed.fetched(("audit", farm), partial(audit_of, store), COORD_EVERY)
        notes += _failed(farm, fetched)
        for one in fetched.value or ():
            when = f"{datetime.fromtimestamp(one.at, timezone.utc):%Y-%m-%d %H:%M:%S}"
            cells = (when, one.who, one.what, one.target, one.why, one.before, one.after, one.outcome, one.farm)
            rows.append(row(None, cells, PLAIN if one.outcome == DONE else WARN))
    columns = (
        Column("when", right=False), Column("who", right=False), Column("what", right=False),
        Column("on", right=False), Column("why", 3, right=False), Column("before", 4, right=False),
        Column("after", 5, right=False), Column("outcome", 2, right=False), Column("farm", 6, right=False),
    )  # fmt: skip
    rows.sort(key=lambda one: one.cells[0], reverse=True)
    return Table(columns, tuple(rows), tuple(notes), "nobody has done anything")
