"""`latchwork lock`: run a program under a fenced lock, and see who holds it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...coord import FencedLock
from ...coord.election.candidates import CONTENDERS
from ...coord.lease import LeaseView
from ...coord.lock import LOCKS
from ...errors import Corrupt, NotFound
from ...inputs import checked_text
from ...plain import shown, shown_time, word
from ...store import Key
from ...store.port import Record, RecordStore
from ..audit import noted, person
from ..options import Command, Grace, Lease, Why
from ..run.block import held_while_it_runs
from ..run.supervise import GRACE, run_under
from ..session import Session
from ..similar import meant
from .records import time_of
from .waiting import Waiting, holder_of

app = typer.Typer(help="Take turns, with fences.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the lock")]


def whole(text: str) -> int:
    """Return a whole number from 1 on, also one with commas between its thousands. Raises `ValueError`."""
    try:
        number = int(text.replace(",", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{shown(text)} is not a whole number from 1 on")
    return number


Fence = Annotated[
    int, typer.Option(parser=whole, metavar="INTEGER", help="the holder's fence, as `lock show` names it: 1 or more")
]


@app.command()
def run(
    context: typer.Context,
    name: Name,
    command: Command,
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for the lock; no limit by default")] = None,
    lease: Lease = 10.0,
    grace: Grace = GRACE,
) -> None:
    """Run a command while holding the lock. Exit code: the command's, or 4 if the lock was not acquired in time.

    The command gets the fence in $LATCHWORK_FENCE and should pass it on to everything it writes to. It gets the store
    in $LATCHWORK_STORE. It is ended with SIGTERM, then SIGKILL, when the lock is lost, when this process has to end,
    and when this process is killed. Everything that the command has started is ended before the lock is released.

    Example: latchwork lock run nightly --timeout 60 -- ./job.sh --full
    """
    session: Session = context.obj.may_make()
    lock, store = FencedLock(session.store, name, lease=lease), session.store
    waiting = Waiting(store.seams, f"the lock {shown(name)}", lambda: holder_of(store, name))
    with waiting, held_while_it_runs(lock.acquire(timeout, keep_alive=True), lease) as grant:
        waiting.over()
        facts = {"fence": grant.fence, "lock": name}
        code = run_under(command, grant.lost, facts, session.environment, lease=lease, grace=grace)
    raise typer.Exit(code)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show who holds the lock. It also shows when the holder renewed it last, by the server's clock.

    Exit code 3 if the lock was never taken. A holder that has not renewed for its whole lease has died or is paused:
    another party that wants the lock takes it, one lease after its first look.

    Example: latchwork lock show nightly --json
    """
    session: Session = context.obj
    key = Key(LOCKS, checked_text("name", name))
    record = session.store.get(key)
    if record is None:
        raise _never_taken(session.store, name)
    facts = facts_of(record, time_of(session.store, key))
    if not facts["held"]:
        session.say(f"{name} is free; its last fence is {facts['fence']}", **facts)
        return
    late = ": it has run out" if facts["ran_out"] else ""
    if facts["broken_by"] is not None:
        by, ago, lease = facts["broken_by"], shown_time(facts["renewed_s_ago"]), facts["lease"]
        when = (
            f"who has waited for {lease:g} s, the lease of its former holder, takes it; sooner, if the process of that"
        )
        sooner = f"{when} one has ended: {_at_once(name, facts['fence'])}" if lease else "it can be taken at once"
        session.say(
            f"{name} was broken by {by} {ago} ago, and nobody holds it, fence {facts['fence']}", sooner, **facts
        )
        return
    session.say(
        f"{name} is held by {facts['owner']}, fence {facts['fence']}",
        f"renewed {facts['renewed_s_ago']:.1f} s ago, its lease is {facts['lease']:g} s{late}",
        **facts,
    )


@app.command("break")
def break_lease(
    context: typer.Context,
    name: Name,
    fence: Fence,
    at_once: Annotated[bool, typer.Option("--at-once", help="do not wait until the holder's lease is over")] = False,
    why: Why = "",
) -> None:
    """Take the lock from a holder that hangs or has died.

    The holder's next renewal is refused, and so are its fenced writes to anything that the next holder has written.
    This does not stop its work, so end its process too. The next holder has a higher fence. It waits for the whole
    lease of the broken holder, unless you give --at-once: then both may work at the same time until the broken holder
    renews. Exit code 3 if nobody holds the lock under that fence.

    Example: latchwork lock break nightly --fence 1764282738123456
    """
    session: Session = context.obj
    lock = FencedLock(session.store, name, owner=person())
    key = Key(LOCKS, checked_text("name", name))
    if session.store.get(key) is None:
        raise _never_taken(session.store, name)
    before = holder_of(session.store, name)
    with noted(session, "break", "lock", None, name, before=before, why=why) as deed:
        done = lock.break_lease(fence, at_once=at_once)
        deed.after = "broken" if done else "it was not held under that fence"
    if not done:
        raise NotFound(
            f"the lock {shown(name)} is not held under the fence {fence}: `latchwork lock show` names its holder"
        )
    lines = [f"broke {name}: it can be taken {'at once' if at_once else 'once the lease of its holder is over'}"]
    record = None if at_once else session.store.get(key)
    if record is not None and (view := LeaseView.of(key, record.bins)).broken_by is not None:
        lines = [
            f"broke {name}: who has waited for {view.lease:g} s, the lease of its holder, takes it",
            f"sooner, if the process of its holder has ended: {_at_once(name, view.fence)}",
        ]
    session.say(*lines, lock=name, fence=fence, at_once=at_once)


@app.command("list")
def list_all(context: typer.Context) -> None:
    """List the locks of the store, and who holds each.

    For elections, `latchwork leader status` says who leads. It reads all locks: use it by hand, not in a script that
    runs each second. Exit code 3 if there are none.

    Example: latchwork lock list --json
    """
    session: Session = context.obj
    found = sorted(locks_in(session.store), key=lambda one: str(one.key.name))
    if not found:
        raise NotFound(f"no lock was ever taken in {session.where}")
    now = time_of(session.store, found[0].key)
    rows = []
    for record in found:
        try:
            row = facts_of(record, now)
        except Corrupt:
            row = dict.fromkeys(FACTS) | {"lock": str(record.key.name), "owner": "its record is damaged"}
        if row["renewed_s_ago"] is not None:
            row["renewed_s_ago"] = round(row["renewed_s_ago"], 1)
        if not session.json:  # a fence that can be copied into a command
            row |= {"fence": None if row["fence"] is None else str(row["fence"]), "ran_out": row["ran_out"] or None}
        rows.append(row)
    session.table(rows, "locks")


def _at_once(name: str, fence: int) -> str:
    return f"latchwork lock break {word(name)} --fence {fence} --at-once"


def _never_taken(store: RecordStore, name: str) -> NotFound:
    """Return the error that there is no such lock, with one of a similar name."""
    similar = meant(name, (str(one.key.name) for one in locks_in(store)))
    listing = "`latchwork lock list` lists the locks that there are"
    text = f"the lock {shown(name)} was never taken in this store{similar}; {listing}"
    return NotFound(text, key=Key(LOCKS, name))


FACTS = "lock", "held", "owner", "fence", "lease", "renewed_s_ago", "ran_out", "broken_by"
"""What is told of a lock."""


def facts_of(record: Record, now: int) -> dict[str, Any]:
    """Return how a lock stands. Raises `Corrupt`."""
    view = LeaseView.of(record.key, record.bins)
    silent = max(0.0, (now - view.time) / 1000)
    return {
        "lock": str(record.key.name), "held": view.locked, "owner": view.owner if view.locked else None,
        "fence": view.fence, "lease": view.lease, "renewed_s_ago": silent if view.locked else None,
        "ran_out": view.locked and silent > view.lease, "broken_by": view.broken_by,
    }  # fmt: skip


def locks_in(store: RecordStore) -> list[Record]:
    """Return the records of all locks, without those of elections."""
    elections = {record.key.name for record in store.scan(CONTENDERS)}
    return [record for record in store.scan(LOCKS) if record.key.name not in elections]
