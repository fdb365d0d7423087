"""`latchwork latch`: latches from a shell, for example as a barrier between scripts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..coord import CountDownLatch, LatchLevel, LatchProgress
from ..errors import AlreadyExists, InvalidRequest, NotFound
from .options import Client, Farm
from .session import Session

TIMED_OUT = 4
app = typer.Typer(help="Wait until so many things have happened.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the latch's id")]
Level = Annotated[LatchLevel, typer.Option(help="dc: this farm's counter; xdc: the sum over all farms")]


def _get(session: Session, name: str, client: str, farm: str | None, level: LatchLevel) -> CountDownLatch:
    return CountDownLatch.get(session.store, client, name, farm_id=farm, level=level)


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
    count: Annotated[int | None, typer.Option(help="how many counts release it")] = None,
    party: Annotated[list[str] | None, typer.Option(help="instead: a party that counts once; repeat for each")] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
    farms: Annotated[str | None, typer.Option(help="xdc: the farms to wait for, with commas")] = None,
    ttl: Annotated[int, typer.Option(help="seconds to live")] = 3600,
) -> None:
    """Create a latch.

    Example: latchwork latch create nightly --client shop --count 3 --ttl 7200
    """
    session: Session = context.obj
    if farms and level is LatchLevel.DC:
        raise InvalidRequest(f"--farms is {farms!r} at level dc: name farms only with --level xdc")
    try:
        latch = CountDownLatch.create(
            session.store,
            client,
            name,
            count,
            parties=party or None,
            farm_id=farm,
            level=level,
            farms=[farm.strip() for farm in farms.split(",")] if farms else None,
            ttl=ttl,
        )
    except AlreadyExists:
        raise AlreadyExists(
            f"the latch {name!r} of {client!r} exists already: go on with it, delete it first, or take another name"
        ) from None
    progress = latch.progress()
    session.say(f"created {name}: {progress.remaining} to go", **_facts(name, progress))


@app.command("count-down")
def count_down(
    context: typer.Context,
    name: Name,
    client: Client,
    n: Annotated[int, typer.Option("-n", "--by", help="how much")] = 1,
    party: Annotated[str | None, typer.Option(help="count once for this party, however often it is repeated")] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
) -> None:
    """Count down, exactly once.

    Example: latchwork latch count-down nightly --client shop --party orders
    """
    session: Session = context.obj
    remaining = _get(session, name, client, farm, level).count_down(n, party=party)
    session.say(f"{remaining} to go", latch=name, remaining=remaining)


@app.command()
def wait(
    context: typer.Context,
    name: Name,
    client: Client,
    timeout: Annotated[float | None, typer.Option(help="seconds; for ever by default")] = None,
    farm: Farm = None,
    level: Level = LatchLevel.DC,
) -> None:
    """Wait until the latch is released; exit code 4 when the time is over before that.

    Example: latchwork latch wait nightly --client shop --timeout 600 && ./report.sh
    """
    session: Session = context.obj
    latch = _get(session, name, client, farm, level)
    released = latch.wait(timeout, progress=True)
    try:
        progress = latch.progress()
        facts = _facts(name, progress, counted=sorted(str(party) for party in latch.parties()))
    except NotFound:
        if not released:
            raise
        session.say("released", latch=name, released=True)  # and deleted since, by somebody who waited as well
        return
    session.say("released" if released else f"timed out with {progress.remaining} to go{_from(progress)}", **facts)
    if not released:
        raise typer.Exit(TIMED_OUT)


def _from(progress: LatchProgress) -> str:
    return f"; nothing yet from {', '.join(progress.absent_farms)}" if progress.absent_farms else ""


@app.command()
def show(context: typer.Context, name: Name, client: Client, farm: Farm = None, level: Level = LatchLevel.DC) -> None:
    """The counters by farm, and who has counted.

    Example: latchwork latch show nightly --client shop --level xdc --json
    """
    session: Session = context.obj
    latch = _get(session, name, client, farm, level)
    progress = latch.progress()
    parties = sorted(str(party) for party in latch.parties())
    state = "released" if progress.released else f"held, {progress.remaining} to go" + _from(progress)
    counts = ", ".join(f"{farm} {count}" for farm, count in progress.counts.items())
    text = f"{name}: {state}\ncounters: {counts}" + (f"\ncounted: {', '.join(parties)}" if parties else "")
    session.say(text, **_facts(name, progress, counted=parties))


@app.command()
def delete(context: typer.Context, name: Name, client: Client, farm: Farm = None, level: Level = LatchLevel.DC) -> None:
    """Delete a latch with the counters of all its farms, whichever is named; whoever waits for it is told.

    Example: latchwork latch delete nightly --client shop
    """
    session: Session = context.obj
    there = _get(session, name, client, farm, level).delete()
    session.say(f"deleted {name}" if there else f"there was no {name}", latch=name, deleted=there)
