"""`latchwork stats`: all queues of a client in one table, once or live."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from ..errors import InvalidRequest, NotFound, Unavailable
from ..inputs import farm_or_default
from ..observe.findings import OK, PROBLEM, WARNING, Finding, findings_of
from ..observe.findings.words import of_client
from ..observe.snapshot import Snapshot, clients_in
from ..plain import one_line
from ..queue import QueueRegistry
from .coord.farms import Elections, FarmStores, urls_of
from .coord.state import AskedNames, Barriers, Groups, Limiters, RWLocks, Semaphores, State, states
from .finding_lines import block_of
from .options import CLIENT_VARIABLE, Farm, checked_every
from .queue.arguments import no_queues
from .queue.facts import SAMPLE, all_rows, balance
from .session import Session, absent_file, note
from .tables import RowsOnTerminal, terminal

OneClient = Annotated[
    str | None,
    typer.Option(
        envvar=CLIENT_VARIABLE,
        help="the client id, the owner of the queues [default: the only client that has queues there]",
    ),
]
NOBODY = "-"
"""Stands for the client where none has queues, and other things were asked for by name."""
MANY = 20
"""Clients that an error names."""
LEAST = 4
"""Lines of the tables that are shown whatever is wrong."""
LEAST_SAID = 6
"""Lines at least for what is wrong, however long the table is."""
COLUMNS = {
    "queue": "queue",
    "state": "state",
    "ready": "ready",
    "in_flight": "in flight",
    "in_rate": "in/s",
    "out_rate": "out/s",
    "oldest_age_s": "oldest s",
    "workers": "at work",
    "delayed": "delayed",
    "retrying": "retrying",
    "sideline": "sideline",
    "reasons": "why",
    "parked": "parked",
    "batches": "batches",
    "expired": "expired",
    "shard_balance": "balance",
    "swept_s_ago": "swept s ago",
    "sweep_error": "sweep error",
    "wrong": "wrong",
}


def stats(
    context: typer.Context,
    client: OneClient = None,
    watch: Annotated[bool, typer.Option("--watch", help="show it again and again, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 2.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="stop after this number of looks")] = None,
    farm: Farm = None,
    group: Groups = None,
    semaphore: Semaphores = None,
    rwlock: RWLocks = None,
    barrier: Barriers = None,
    limiter: Limiters = None,
    election: Elections = None,
    farm_store: FarmStores = None,
) -> None:
    """Show depth, rates, reasons, the oldest message and the last sweep of every queue, and the leader of the sweepers.

    The last column names problems. On a terminal, lines below the table explain each with its remedy; `latchwork
    doctor` does too. Without --client and $LATCHWORK_CLIENT the command takes the only client that has queues there.
    Exit code 3 if the client has no queue and you asked for nothing else.

    Below the queues there is a row for each group, semaphore, read-write lock, barrier, rate limiter and election over
    all farms that you name.

    --watch goes on while the store is away, and says so; if it is away from the start, the command fails.

    The leader is that of the election CLIENT-sweeper, by lease. A leader that ZooKeeper chose, or that leads under
    another name, is not shown.

    Example: latchwork stats --client shop --watch
    """
    session: Session = context.obj
    checked_every(every, least=0)
    if rounds is not None and not watch:
        raise InvalidRequest("--rounds without --watch: one look is all that there is; give --watch too")
    farms = session.stores_of(urls_of(context, farm_store))
    if election and farms and absent_file(session.named_store) is not None:  # the farms are all that is used
        asked = AskedNames.of(client, election, farms)
        session.table([state.row for state in states(session.named_store, asked)])
        return
    wanted = AskedNames.of(
        client, election, farms, group=group, semaphore=semaphore, rwlock=rwlock, barrier=barrier, limiter=limiter
    )
    if client is None:
        client = _only_client(session, farm, is_needed=not (any(wanted.names.values()) or wanted.elections))
    watcher = _Watcher(QueueRegistry(session.store, client, farm_id=farm), wanted)
    if not watch:
        _show(session, watcher, client)
    elif sys.stdout.isatty() and not session.json:
        of = "" if client == NOBODY else f" of {client}"
        _live(watcher, every, rounds, empty=f"no queues{of} in {session.where}")
    else:
        session.prints_lines()
        _look_again(watcher, every, rounds, lambda: _show(session, watcher, client), note)


def _only_client(session: Session, farm: str | None, *, is_needed: bool) -> str:
    """Return the client that has queues there. Raises `InvalidRequest` where there are several, which it names.

    is_needed: if there is none, `NotFound` is raised; else `NOBODY` is returned.
    """
    found = clients_in(session.store, farm)
    if found is None:
        raise InvalidRequest(f"{session.where} cannot list its clients: name a client with --client ID")
    if not found:
        if not is_needed:
            return NOBODY
        raise NotFound(f"no client has queues in farm {farm_or_default(farm)!r} of {session.where}")
    if len(found) > 1:
        more = f" and {len(found) - MANY} more" if len(found) > MANY else ""
        raise InvalidRequest(f"name a client with --client ID; clients with queues: {', '.join(found[:MANY])}{more}")
    return found[0]


def _show(session: Session, watcher: _Watcher, client: str) -> None:
    """Print a table for people, or as JSON what `queue stats` prints for each queue, and the rates."""
    taken, rows = watcher.look()
    leads = taken.leader if taken.leader and taken.leader.leads else None
    queues = [
        row | {"leader": leads.name if leads else None, "leader_epoch": leads.epoch if leads else None} for row in rows
    ]
    named = [state.row for state in watcher.named()]
    if not rows and not named:
        raise no_queues(session, client, taken.farm)
    if session.json:
        session.table(queues + named)
        return
    if rows:
        session.table(_titled(rows), _title(taken))
    if named:
        session.table(named)
    if sys.stdout.isatty() and (found := findings_of(taken)):
        console = terminal()
        table = console.render_lines(RowsOnTerminal(_titled(rows), _title(taken)), pad=False) if rows else []
        # As much as leaves the table on the screen, with a line for the prompt; what a person must act on is last.
        blocks = [block_of(one, console.width) for one in found]
        fit, more = _fitting(blocks, max(console.height - 2 - len(table), LEAST_SAID), _named(taken), console.width)
        session.say(*more, *(line for block in reversed(fit) for line in block))


def _look_again(
    watcher: _Watcher, every: float, rounds: int | None, look: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Look again and again; say once when the store is away. Raises `Unavailable` of the first look and of the last."""
    has_looked = is_away = False
    for left in reversed(range(rounds if rounds is not None else sys.maxsize)):
        try:
            look()
            has_looked, is_away = True, False
        except Unavailable as failure:
            if not has_looked or not left:
                raise
            if not is_away:
                is_away = True
                say(f"the store is away, and is asked again each {every:g} s: {failure}")
        watcher.seams.sleep(every)


def _live(watcher: _Watcher, every: float, rounds: int | None, *, empty: str) -> None:
    with Live(console=terminal(), auto_refresh=False, screen=False) as live:
        screen: list[Screen] = []

        def look() -> None:
            (taken, rows), named = watcher.look(), [state.row for state in watcher.named()]
            # What is wrong with a queue stands first, so that it stays where not all of them fit.
            worst = (PROBLEM, WARNING, OK)
            rows.sort(key=lambda row: min((worst.index(one["state"]) for one in row["findings"]), default=len(worst)))
            parts: list[RenderableType] = [
                RowsOnTerminal(_titled(rows), _title(taken)) if rows else Text(one_line(empty))
            ]
            parts += [RowsOnTerminal(named)] if named else []
            screen[:] = [Screen(Group(*parts), findings_of(taken), _named(taken))]
            live.update(screen[0], refresh=True)

        def say(away: str) -> None:
            screen[0].away = f"{away}. The figures are those of the last look."
            live.update(screen[0], refresh=True)

        _look_again(watcher, every, rounds, look, say)


class Screen:
    """Tables, and below them what is wrong, in no more lines than the terminal has: a finding is shown whole, with its
    remedy, and before the rest of the tables.

    named: the client, as a command names it.
    """

    def __init__(self, tables: RenderableType, found: Sequence[Finding], named: str) -> None:
        self._tables, self._found, self._client = tables, found, named
        self.away = ""
        """What stands above all, where the tables are of an earlier time."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        away = wrap(one_line(self.away), options.max_width)
        yield from map(Text, away)
        room = max(console.height - 1 - len(away), 2)
        lines = console.render_lines(self._tables, options.update(height=None), pad=False)
        blocks = [block_of(one, options.max_width) for one in self._found]
        # 1. The findings, worst first, that fit beside some lines of the tables.
        fit, more = _fitting(blocks, room - min(len(lines), LEAST), self._client, options.max_width)
        shown = [line for block in fit for line in block] + more
        # 2. As much of the tables as there is room for.
        if len(lines) > room - len(shown):
            lines = lines[: max(room - len(shown) - 1, 0)]
            lines.append([Segment("... more in a larger window")])
        for line in lines:
            yield from line
            yield Segment.line()
        yield from (Text(one_line(line)) for line in shown)


def _fitting(blocks: Sequence[list[str]], room: int, named: str, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the blocks that fit into this number of lines, the worst in any case; and what says how many are left."""
    if sum(map(len, blocks)) <= room:
        return list(blocks), []
    fits, used = 1, len(blocks[0])
    while fits < len(blocks) and used + len(blocks[fits]) < room:
        used += len(blocks[fits])
        fits += 1
    left = len(blocks) - fits
    more = f"and {left} more: latchwork doctor {named}" if left else ""
    return list(blocks[:fits]), wrap(more, width, break_long_words=False, break_on_hyphens=False)


def _named(taken: Snapshot) -> str:
    return of_client(taken.client, taken.farm)


class _Watcher:
    """A reader of all queues, and of what was named beside them."""

    def __init__(self, registry: QueueRegistry, wanted: AskedNames) -> None:
        self._registry, self._wanted, self.seams = registry, wanted, registry.store.seams

    def look(self) -> tuple[Snapshot, list[dict[str, Any]]]:
        """Return the client as it is now, and a row for each queue."""
        return all_rows(self._registry)

    def named(self) -> list[State]:
        """Return the state of what was named beside the queues."""
        return list(states(self._registry.store, self._wanted))


def _title(taken: Snapshot) -> str:
    return f"the upkeep: {taken.upkeep}"


def _titled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    titled = []
    for row in rows:
        unusual = [word for word, holds in (("inactive", not row["active"]), ("paused", row["paused"])) if holds]
        wrong = dict.fromkeys(one["kind"] for one in row["findings"] if one["state"] != OK)
        cells = row | {
            # The table leaves out a column that is None in each row.
            "state": ", ".join(unusual) or None, "workers": _workers(row), "wrong": ", ".join(wrong) or None,
            "reasons": _reasons(row), "swept_s_ago": "-" if row["swept_s_ago"] is None else row["swept_s_ago"],
            "shard_balance": balance(row), **{name: row[name] or None for name in ("delayed", "retrying", "batches")},
        }  # fmt: skip
        titled.append({title: cells[name] for name, title in COLUMNS.items()})
    return titled


def _workers(facts: dict[str, Any]) -> str | None:
    """Return how many work, how many of these may be dead, as their reports are overdue, and how many take no more
    messages, as they are about to stop, or as their handlers hang.
    """
    count = len(facts["workers"])
    some = [
        f"{len(facts[f'{word}_workers'])} {word}"
        for word in ("overdue", "draining", "saturated")
        if facts[f"{word}_workers"]
    ]
    return f"{count} ({', '.join(some)})" if some else f"{count}" if count else None


def _reasons(facts: dict[str, Any]) -> str | None:
    reasons = ", ".join(f"{name} {count}" for name, count in facts["sidelined_by_reason"].items())
    looked = facts["sidelined_looked_at"]
    return reasons + (f" of {looked} looked at" if facts["sideline"] > looked >= SAMPLE else "") or None
