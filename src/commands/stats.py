"""`latchwork stats`: all queues of a client in one table, once or live."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from ..errors import InvalidRequest
from ..queue import QueueRegistry
from ..store.port import Key
from .session import Session, as_table
from .snapshot import SAMPLE, all_facts

MAX_EVERY = 86_400

COLUMNS = {
    "queue": "queue",
    "ready": "ready",
    "in_flight": "in flight",
    "in_rate": "in/s",
    "out_rate": "out/s",
    "oldest_age_s": "oldest s",
    "sideline": "sideline",
    "reasons": "why",
    "parked": "parked",
    "expired": "expired",
    "shard_balance": "balance",
    "swept_s_ago": "swept s ago",
    "sweep_error": "sweep error",
}


def stats(
    context: typer.Context,
    client: Annotated[str, typer.Option(envvar="LATCHWORK_CLIENT", help="the client id: whose queues they are")],
    watch: Annotated[bool, typer.Option("--watch", help="again and again, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 2.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="stop after so many looks")] = None,
    farm: Annotated[str | None, typer.Option(help="the data centre [default: $LATCHWORK_FARM, else local]")] = None,
) -> None:
    """Depth, rates, reasons, the oldest message and the last sweep of every queue, and who leads the sweepers.

    Example: latchwork stats --client shop --watch
    """
    session: Session = context.obj
    if not 0 <= every <= MAX_EVERY:
        raise InvalidRequest(f"--every is {every}; give 0 to {MAX_EVERY} seconds")
    watcher = _Watcher(QueueRegistry(session.store, client, farm_id=farm))
    if not watch:
        _show(session, watcher, client)
    elif sys.stdout.isatty() and not session.json:
        _live(watcher, every, rounds)
    else:
        for _ in range(rounds if rounds is not None else sys.maxsize):
            _show(session, watcher, client)
            session.store.seams.sleep(every)


def _show(session: Session, watcher: _Watcher, client: str) -> None:
    """A table for people; as JSON what `queue stats` says of each queue, and the rates."""
    rows, leader = watcher.look(), watcher.leader()
    told = [row | {"leader": leader and leader[0], "leader_epoch": leader and leader[1]} for row in rows]
    session.table(told if session.json else _titled(rows), _title(leader), empty=f"no queues of {client}")


def _live(watcher: _Watcher, every: float, rounds: int | None) -> None:
    with Live(console=Console(), auto_refresh=False, screen=False) as live:
        for _ in range(rounds if rounds is not None else sys.maxsize):
            rows = watcher.look()
            live.update(as_table(_titled(rows), _title(watcher.leader())) if rows else "no queues", refresh=True)
            watcher.seams.sleep(every)


class _Watcher:
    """Looks at all queues, and tells rates from one look to the next."""

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry, self.seams = registry, registry.store.seams
        self._before: dict[str, tuple[float, int, int]] = {}

    def leader(self) -> tuple[str, int] | None:
        """Who sweeps, and its epoch; None where nobody was elected by lease."""
        leader = self._registry.store.get(
            Key("latchwork_locks", f"{self._registry.client_id}-sweeper"), "locked", "lock-owner", "fencing-ctr"
        )
        if leader is None or not leader.bins.get("locked"):
            return None
        return leader.bins["lock-owner"], leader.bins["fencing-ctr"]

    def look(self) -> list[dict[str, Any]]:
        """A row for each queue."""
        return [self._row(facts) for facts in all_facts(self._registry)]

    def _row(self, facts: dict[str, Any]) -> dict[str, Any]:
        now = self.seams.monotonic()
        before = self._before.get(facts["queue"])
        self._before[facts["queue"]] = (now, facts["published"], facts["received"])
        facts["in_rate"], facts["out_rate"] = (
            (None, None) if before is None else _rates(before, now, facts["published"], facts["received"])
        )
        return facts


def _title(leader: tuple[str, int] | None) -> str:
    return f"{leader[0]} leads the sweepers, epoch {leader[1]}" if leader else "nobody leads the sweepers"


def _titled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    words = [row | {"reasons": _reasons(row), "swept_s_ago": _or_never(row["swept_s_ago"])} for row in rows]
    return [{title: row[name] for name, title in COLUMNS.items()} for row in words]


def _or_never(ago: float | None) -> float | str:
    """A queue that was never swept says so: a table leaves out what no row has."""
    return "-" if ago is None else ago


def _reasons(facts: dict[str, Any]) -> str | None:
    told = ", ".join(f"{name} {count}" for name, count in facts["sidelined_by_reason"].items())
    looked = facts["sidelined_looked_at"]
    return told + (f" of {looked} looked at" if facts["sideline"] > looked >= SAMPLE else "") or None


def _rates(before: tuple[float, int, int], now: float, published: int, received: int) -> tuple[float, float]:
    then, published_then, received_then = before
    seconds = max(now - then, 1e-9)
    return round((published - published_then) / seconds, 1), round((received - received_then) / seconds, 1)
