"""`latchwork limit`: ask a rate limiter from a script, or wait for it."""

from __future__ import annotations

from typing import Annotated

import typer

from ...coord import Decision, RateLimiter
from ...errors import WaitTimeout
from ...plain import shown
from ..exit_codes import TIMED_OUT
from ..options import Timeout
from ..session import Session
from .waiting import Waiting

app = typer.Typer(help="Limit how often something happens.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the limiter")]
Limit = Annotated[int, typer.Option(help="the number")]
Per = Annotated[float, typer.Option(help="in how many seconds")]
Number = Annotated[int, typer.Option("-n", "--weight", help="the number of calls to allow, all or none")]


@app.command("try")
def ask(context: typer.Context, name: Name, limit: Limit, per: Per, n: Number = 1) -> None:
    """Ask once whether there is room. Exit code 4 if there is none now.

    Example: latchwork limit try login/ada --limit 5 --per 300 || echo "too many"
    """
    session: Session = context.obj.may_make()
    decision = RateLimiter(session.store, name, limit, per).try_acquire(n)
    _say(session, name, decision)
    if not decision.allowed:
        raise typer.Exit(TIMED_OUT)


@app.command()
def wait(context: typer.Context, name: Name, limit: Limit, per: Per, n: Number = 1, timeout: Timeout = None) -> None:
    """Wait for room. Exit code 4 as soon as it is certain that there will be none in time.

    Example: latchwork limit wait bank-api --limit 100 --per 60 && curl https://bank.example/api
    """
    session: Session = context.obj.may_make()
    limiter = RateLimiter(session.store, name, limit, per)
    try:
        with Waiting(session.store.seams, f"room in the limiter {shown(name)}", lambda: ""):
            decision = limiter.acquire(timeout, n=n)
    except WaitTimeout as failure:
        session.say(str(failure), limit=name, allowed=False)
        raise typer.Exit(TIMED_OUT) from None
    _say(session, name, decision)


def _say(session: Session, name: str, decision: Decision) -> None:
    text = f"let through, {decision.remaining} left" if decision.allowed else f"no room for {decision.retry_after:g} s"
    session.say(
        text, limit=name, allowed=decision.allowed, remaining=decision.remaining, retry_after=decision.retry_after
    )
