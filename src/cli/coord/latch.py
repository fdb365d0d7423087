"""`latchwork latch`: latches from a shell, for example as a barrier between scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ...coord import CountDownLatch, LatchLevel, LatchProgress
from ...coord.latch.latch import NAMED
from ...coord.latch.layout import COUNT, SET_SUFFIX, bins_of, latch_key, latches_in
from ...coord.latch.watch import by_farm
from ...errors import AlreadyExists, InvalidRequest, LatchworkError, NotFound
from ...inputs import is_int, whole_of
from ...plain import shown, shown_time
from ..audit import noted
from ..exit_codes import TIMED_OUT
from ..options import Client, Farm, Timeout
from ..session import Session
from ..similar import meant

app = typer.Typer(help="Count down to zero, and wait for that.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the latch's id")]
Level = Annotated[LatchLevel, typer.Option(help="dc: this farm's counter; xdc: the sum over all farms")]

SetSuffix = Annotated[str, typer.Option(help="the last part of the name of the latch's set, D_LTCH#...")]


@contextmanager
def _names_a_similar(session: Session, name: str, client: str, suffix: str) -> Iterator[None]:
    """Add a latch of a similar name to the error that there is no latch of this name."""
    try:
        yield
    except NotFound as failure:
        there = latches_in(session.store, client, suffix)
        similar = "" if name in there else meant(name, there)
        if not similar:
            raise
        raise NotFound(f"{failure}{similar}", **failure.details) from None


def _get(session: Session, name: str, client: str, farm: str | None, level: LatchLevel, suffix: str) -> CountDownLatch:
    return CountDownLatch.get(session.store, client, name, farm_id=farm, level=level, set_suffix=suffix)


def _facts(name: str, progress: LatchProgress, **more: Any) -> dict[str, Any]:
    return {
        "latch": name,
        "released": progress.released,
        "remaining": progress.remaining,
        "counts": progress.counts,
        "absent_farms": list(progress.absent_farms),
        **more,
    }


@app.command()
def create(
    context: typer.Context,
    name: Name,
    client: Client,
    count: Annotated[int | None, typer.Option(help="the number of counts that release it")] = None,
    party: Annotated[
        list[str] | None, typer.Option(help="instead of --count: a party, which counts once; repeat for each")
    ] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    farms: Annotated[str | None, typer.Option(help="xdc: the farms to wait for, separated by commas")] = None,
    ttl: Annotated[int | None, typer.Option(help="seconds to live [default: 43200]")] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="succeed too if the latch exists already")] = False,
    set_suffix: SetSuffix = SET_SUFFIX,
) -> None:
    """Create a latch.

    Example: latchwork latch create nightly --client shop --count 3 --ttl 7200
    """
    session: Session = context.obj.may_make()
    if farms is not None and level is LatchLevel.DC:
        raise InvalidRequest(f"--farms is {shown(farms)} at level dc: name farms only with --level xdc")
    options: dict[str, Any] = {
        "parties": party or None,
        "farm_id": farm,
        "level": level,
        "farms": None if farms is None else [farm.strip() for farm in farms.split(",")],
        "set_suffix": set_suffix,
        **({} if ttl is None else {"ttl": ttl}),
    }
    make = CountDownLatch.get_or_create if if_absent else CountDownLatch.create
    try:
        progress = make(session.store, client, name, count, **options).progress()
    except AlreadyExists as failure:
        if if_absent:  # for other parties
            raise
        raise AlreadyExists(
            f"the latch {name!r} of {client!r} exists already: use it with --if-absent, delete it first, or take "
            "another name",
            **failure.details,
        ) from None
    verb = "there is" if if_absent else "created"
    session.say(f"{verb} {name}: {progress.remaining} to go", **_facts(name, progress))


@app.command("count-down")
def count_down(
    context: typer.Context,
    name: Name,
    client: Client,
    n: Annotated[int, typer.Option("-n", "--by", help="how much")] = 1,
    party: Annotated[str | None, typer.Option(help="count once for this party, however often it is repeated")] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    set_suffix: SetSuffix = SET_SUFFIX,
) -> None:
    """Count down, exactly once.

    Example: latchwork latch count-down nightly --client shop --party orders
    """
    session: Session = context.obj
    latch = _get(session, name, client, farm, level, set_suffix)
    counted_down = noted(session, "count-down", client, farm, name, *([party] if party else []))
    with _names_a_similar(session, name, client, set_suffix), counted_down as deed:
        number = None if party is None else whole_of(party)  # a shell has no whole numbers
        known = party if number is None or number not in (latch.expected() or ()) else number
        remaining = latch.count_down(n, party=known)
        deed.after = f"{remaining} to go"
    session.say(f"{remaining} to go", latch=name, remaining=remaining)


@app.command()
def wait(
    context: typer.Context,
    name: Name,
    client: Client,
    timeout: Timeout = None,
    create_timeout: Annotated[
        float, typer.Option(help="the most seconds to wait until the latch is created; they are part of --timeout")
    ] = 0,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    set_suffix: SetSuffix = SET_SUFFIX,
) -> None:
    """Wait until the latch is released. Exit code 4 if the time is over before that.

    Example: latchwork latch wait nightly --client shop --timeout 600 --create-timeout 60 && ./report.sh
    """
    session: Session = context.obj if create_timeout <= 0 else context.obj.may_make()  # it waits for a creator
    latch = _get(session, name, client, farm, level, set_suffix)
    with _names_a_similar(session, name, client, set_suffix):
        released = latch.wait(timeout, progress=True, create_timeout=create_timeout)
    try:
        progress, missing = latch.progress(), _names(latch.missing())
        facts = _facts(name, progress, counted=_names(latch.parties()), missing=missing)
    except LatchworkError:
        if not released:
            raise
        session.say("released", latch=name, released=True)  # and deleted since, by another waiter, or out of reach
        return
    waited = f"timed out with {progress.remaining} to go{_from(progress)}{_waiting_for(missing)}"
    session.say("released" if released else waited, **facts)
    if not released:
        raise typer.Exit(TIMED_OUT)


def _from(progress: LatchProgress) -> str:
    return f"; nothing yet from {', '.join(progress.absent_farms)}" if progress.absent_farms else ""


def _waiting_for(missing: list[str]) -> str:
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return f"; missing: {', '.join(missing[:NAMED])}{more}" if missing else ""


def _names(parties: Iterable[str | int]) -> list[str]:
    def place(party: str | int) -> tuple[bool, int, str]:
        return (False, party, "") if isinstance(party, int) else (True, 0, str(party))

    return [str(party) for party in sorted(parties, key=place)]


@app.command()
def show(
    context: typer.Context,
    name: Name,
    client: Client,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    set_suffix: SetSuffix = SET_SUFFIX,
) -> None:
    """Show the counters, who has counted, and who is missing. It also shows when the latch expires.

    Example: latchwork latch show nightly --client shop --level xdc --json
    """
    session: Session = context.obj
    latch = _get(session, name, client, farm, level, set_suffix)
    with _names_a_similar(session, name, client, set_suffix):
        progress = latch.progress()
    parties, missing = _names(latch.parties()), _names(latch.missing())
    held = f"held, {progress.remaining} to go{_from(progress)}{_waiting_for(missing)}"
    state = "released" if progress.released else held
    counts = ", ".join(f"{farm} {count}" for farm, count in progress.counts.items())
    lines = [f"{name}: {state}", f"counters: {counts}", *([f"counted: {', '.join(parties)}"] if parties else [])]
    record = session.store.get(latch_key(client, name, set_suffix), *(bins_of(farm).count for farm in progress.counts))
    lives = None if record is None or record.ttl < 0 else record.ttl
    if lives is not None:
        lines.append(f"expires in {shown_time(lives)}; a count of its creator renews that")
    session.say(*lines, **_facts(name, progress, counted=parties, missing=missing, lives_s=lives))


@app.command("list")
def list_all(context: typer.Context, client: Client, set_suffix: SetSuffix = SET_SUFFIX) -> None:
    """List the latches of a client. Each line has the counters of its farms and the seconds until it expires.

    It reads all latches of the store: use it by hand, not in a script that runs each second. Exit code 3 if there are
    none.

    Example: latchwork latch list --client shop --json
    """
    session: Session = context.obj
    rows = []
    for name, record in sorted(latches_in(session.store, client, set_suffix).items()):
        counts, ttl = by_farm(record, COUNT), record.ttl if record.ttl >= 0 else None
        # A damaged counter does not keep the others from being seen.
        remaining = sum(counts.values()) if all(map(is_int, counts.values())) else None
        said = counts if session.json else ", ".join(f"{farm} {count}" for farm, count in counts.items())
        rows.append({"latch": name, "remaining": remaining, "counts": said, "lives_s": ttl})
    if not rows:
        raise NotFound(f"client {client!r} has no latches in {session.where}: none was created, or all have ended")
    session.table(rows, f"latches of {client}")


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    client: Client,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    set_suffix: SetSuffix = SET_SUFFIX,
) -> None:
    """Delete a latch; all waiters get an error. The counters of all its farms are deleted, whichever farm you name.
    Exit code 3 if there is no such latch.

    Example: latchwork latch delete nightly --client shop
    """
    session: Session = context.obj
    latch = _get(session, name, client, farm, level, set_suffix)
    with noted(session, "delete", client, farm, name) as deed:
        there = latch.delete()
        deed.after = "deleted" if there else "there was none"
    if not there:
        with _names_a_similar(session, name, client, set_suffix):
            raise NotFound(
                f"there is no latch {name!r} of client {client!r} in {session.where}: it was deleted, or has expired, "
                "or has another name",
                latch=name,
            )
    session.say(f"deleted {name}", latch=name, deleted=True)
