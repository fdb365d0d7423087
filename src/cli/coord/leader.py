"""`latchwork leader`: who leads, and run a program only while leading."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from ...coord import GlobalElection, Leadership, LeaseElection, ZooKeeperElection
from ...coord.election.candidates import CONTENDERS
from ...errors import InvalidRequest, LatchworkError, NotFound
from ...inputs import farm_or_default
from ...observe.audit import Deed, audit_of, audited
from ...observe.findings import OK
from ...observe.snapshot import Leader, alive, election_now, standing_of
from ...plain import shown, shown_time
from ...queue import QueueRegistry
from ...queue.sharded.upkeep.reporter import FARM
from ...queue.sharded.upkeep.upkeep import election_name
from ...queue.sharded.workers import WorkerReport, workers_of
from ...store import RecordStore
from ...store.connect import VARIABLE
from ..audit import person
from ..exit_codes import NOT_FOUND
from ..options import Command, Farm, Grace, Why
from ..run.block import note_unreleased
from ..run.supervise import GRACE, run_under
from ..session import Session, note
from ..similar import meant
from .elections import office_of, stepped_down_by, successor
from .farms import FarmStores, ZooKeeper, key_of, only_with_farms, urls_of
from .state import election_state
from .waiting import Waiting, holder_of, holders

app = typer.Typer(help="Choose one of many.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the election")]

SOON_AFTER = 10.0
"""Seconds at most between the record of a step-down and the step-down itself."""


@app.command()
def status(context: typer.Context, name: Name, farm_store: FarmStores = None, zookeeper: ZooKeeper = None) -> None:
    """Show who leads, in which epoch, and the candidates. It also shows when the leader renewed its lease last.

    A candidate that died is left out once its report as a worker is overdue by 20 s; if it is no worker, one lease
    after its death.

    Give --farm-store for each farm to see an election over all farms, and in which farms its epoch is sealed. Exit code
    1 if the last leader has neither resigned, nor was made to step down, nor renewed for its whole lease: it died, or
    is paused. Exit code 3 if nobody ever led and there is no candidate: perhaps the name is wrong. Give --zookeeper to
    see the candidates of an election by ZooKeeper.

    Example: latchwork leader status shop-sweeper --json
    """
    session: Session = context.obj
    farms = urls_of(context, farm_store)
    if farms:
        _status_over_all(session, name, farms, zookeeper)
        return
    leader, contenders = election_now(session.store, name)
    if zookeeper is not None:
        contenders = ZooKeeperElection(session.store, name, zookeeper).contenders()
    else:
        contenders = alive(contenders, leader, _reports(session.store, name, contenders))
    if leader is None and not contenders:
        similar = meant(name, (str(one.key.name) for one in session.store.scan(CONTENDERS)))
        raise NotFound(
            f"no election {name!r} in {session.where}: nobody ever led it, and there is no candidate{similar}; the "
            "upkeep of a client's queues is CLIENT-sweeper",
            election=name,
        )
    if leader is not None and (by := stepped_down_by(leader)) is not None:
        _say_stepped_down(session, name, leader, by, contenders)
        return
    renewed = f", last renewed {shown_time(leader.renewed_ago)} ago" if leader and leader.leads else ""
    session.say(
        f"{name}: {standing_of(leader, contenders)}{renewed}",
        *_standing(contenders), election=name, leader=leader.name if leader and leader.leads else None,
        epoch=leader.epoch if leader else None, last_leader=leader.name if leader else None,
        renewed_s_ago=round(leader.renewed_ago, 1) if leader and leader.held else None, stepped_down_by=None,
        contenders=contenders,
    )  # fmt: skip
    if leader and leader.held and not leader.leads:
        raise typer.Exit(1)


def _say_stepped_down(session: Session, name: str, last: Leader, by: str, contenders: Sequence[str]) -> None:
    """Say that nobody leads since a step-down, and who follows when."""
    then = (
        successor(last.lease - last.renewed_ago, last.lease)
        if contenders
        else "no candidate is there, so nobody follows: start one"
    )
    session.say(
        f"{name}: nobody leads: {by} made the leader step down {shown_time(last.renewed_ago)} ago; {then}",
        *_led_before(session.store, name, last),
        *_standing(contenders),
        election=name, leader=None, epoch=last.epoch, last_leader=None, renewed_s_ago=None, stepped_down_by=by,
        contenders=contenders,
    )  # fmt: skip


def _led_before(store: RecordStore, name: str, last: Leader) -> list[str]:
    """Return who led before this step-down, as its record in the audit says; nothing where there is no record."""
    with suppress(LatchworkError):  # a program has no such record, and not every store can list them
        begun = last.now - last.renewed_ago
        for deed in audit_of(store):
            if deed.target == f"election/{name}" and deed.before and abs(begun - deed.at) < SOON_AFTER:
                return [f"before that it was {deed.before}"]
    return []


def _reports(store: RecordStore, name: str, candidates: Sequence[str]) -> list[list[WorkerReport]]:
    """Return the last reports of the workers that are candidates for the upkeep of a client; none for another election.

    Two calls for each of their farms.
    """
    client = name.removesuffix(election_name(""))
    if client == name or not client:
        return []
    found = []
    for farm in sorted({candidate.partition(FARM)[2] for candidate in candidates} - {""}):
        with suppress(LatchworkError):  # what is not known of a candidate is not held against it
            found += workers_of(QueueRegistry(store, client, farm_id=farm).queues(active=None))
    return found


def _standing(contenders: Sequence[str]) -> list[str]:
    return [f"candidates: {', '.join(contenders)}"] if contenders else []


def _status_over_all(session: Session, name: str, farms: dict[str, str], zookeeper: str | None) -> None:
    stores = session.stores_of(farms)
    office = office_of(stores, name)
    state = election_state(name, office)
    contenders = (
        [] if zookeeper is None else GlobalElection(stores, name, zookeeper=zookeeper, farm_id=min(stores)).contenders()
    )
    session.say(
        f"{name}: {state.standing}",
        *_standing(contenders),
        *(finding.what for finding in state.findings if finding.state != OK),
        election=name, leader=None if office.has_run_out else office.leader, epoch=office.epoch,
        last_leader=office.leader, stepped_down_by=office.stepped_down_by,
        contenders=contenders,
        farms={farm: {"epoch": office.seen.get(farm), "sealed": farm in office.sealed,
                      "error": office.failures.get(farm)} for farm in stores},
    )  # fmt: skip
    if office.has_run_out:
        raise typer.Exit(1)
    if office.epoch is None and not office.failures and not contenders:
        raise typer.Exit(NOT_FOUND)


@app.command("step-down")
def step_down(
    context: typer.Context,
    name: Name,
    epoch: Annotated[int, typer.Option(min=1, help="the leader's epoch, as `leader status` names it")],
    why: Why = "",
    farm_store: FarmStores = None,
) -> None:
    """Make a leader step down, so that another one is elected.

    The leader learns of it at its next renewal, at most a third of its lease later. This does not stop its work, so if
    it hangs, end its process. Another candidate is elected once the whole lease is over; the same one again if there is
    no other. Writes under the old epoch are accepted until a resource has seen a later epoch, as with every former
    leader. For an election over all farms, give --farm-store for each farm. Exit code 3 if nobody leads in that epoch.

    Example: latchwork leader step-down shop-sweeper --epoch 1764282738123456
    """
    session: Session = context.obj
    stores = session.stores_of(urls_of(context, farm_store)) or {"": session.store}
    office = office_of(stores, name)
    before = f"led by {office.leader}, epoch {office.epoch}" if office.leader else ""
    answering = [store for farm, store in stores.items() if farm not in office.failures]
    failures: dict[str, LatchworkError] = {}
    with audited(
        [*answering, *stores.values()][0],
        Deed(farm_or_default(None), person(), "step-down", f"election/{name}", why, before),
    ) as deed:
        done = False
        for farm, store in stores.items():  # a farm that is away must not keep the leader of another one in office
            try:
                done = LeaseElection(store, name, candidate=deed.who).step_down(epoch) or done
            except LatchworkError as failure:
                failures[farm] = failure
        if failures and not done:
            raise next(iter(failures.values()))
        deed.after = "stepped down" if done else "nobody led in that epoch"
    for farm, why_not in failures.items():
        note(f"farm {farm} could not be asked: {why_not}")
    if not done:
        raise NotFound(
            f"nobody leads {shown(name)} in the epoch {epoch}: `latchwork leader status` names its leader",
            election=name,
        )
    session.say(f"{name}: its leader steps down; another one is elected once its lease is over", election=name,
                epoch=epoch)  # fmt: skip


@app.command()
def run(
    context: typer.Context,
    name: Name,
    command: Command,
    timeout: Annotated[
        float | None, typer.Option(help="seconds to wait for leadership, above 0; no limit by default")
    ] = None,
    lease: Annotated[float, typer.Option(help="seconds without renewal after which leadership is lost")] = 10.0,
    grace: Grace = GRACE,
    zookeeper: ZooKeeper = None,
    farm_store: FarmStores = None,
    farm: Farm = None,
    prefer: Annotated[
        list[str] | None, typer.Option(help="a preferred farm; repeat for each, the most preferred first")
    ] = None,
    resource: Annotated[list[str] | None, typer.Option(help="SET/KEY of a record to seal in every farm")] = None,
    all_farms: Annotated[bool, typer.Option("--all-farms", help="lead only while every farm can be sealed")] = False,
) -> None:
    """Run a command while leading. Exit code: the command's, or 4 if it was not elected in time.

    The command finds its epoch in $LATCHWORK_EPOCH and the store in $LATCHWORK_STORE. It is ended when leadership is
    lost, as by `latchwork lock run`. With --zookeeper, ZooKeeper chooses the leader instead of a lease.

    With --zookeeper and --farm-store for each farm there is one leader over all farms. Its epoch is sealed in the
    stores of all farms before the command starts. The command then finds the store of its own farm in $LATCHWORK_STORE,
    and the farm in $LATCHWORK_FARM.

    Example: latchwork leader run daily-report -- ./report.sh
    """
    session: Session = context.obj.may_make()
    farms = urls_of(context, farm_store)
    only_with_farms(farms, farm=farm, prefer=prefer, resource=resource, all_farms=all_farms)
    environment, facts = dict(session.environment), {"election": name}
    election: LeaseElection | ZooKeeperElection
    stores = session.stores_of(farms)
    store = stores[min(stores)] if stores else session.store
    if farms:
        if zookeeper is None:
            raise InvalidRequest("--farm-store without --zookeeper: ZooKeeper chooses the leading farm, so name it")
        home = farm_or_default(farm)
        election = GlobalElection(
            stores, name, zookeeper=zookeeper, prefer=prefer or (), farm_id=home,
            resources=[key_of(one) for one in resource or ()], all_farms=all_farms, lease=lease,
        )  # fmt: skip
        environment |= {VARIABLE: farms[home]}
        facts |= {"farm": home}
    elif zookeeper is not None:
        election = ZooKeeperElection(store, name, zookeeper, lease=lease)
    else:
        election = LeaseElection(store, name, lease=lease)

    def who() -> str:
        if not farms:
            return holder_of(store, name)
        leader = office_of(stores, name).leader
        return holders([leader] if leader else [])

    waiting = Waiting(store.seams, f"the election {shown(name)}", who)

    def lead(leadership: Leadership) -> tuple[int, Leadership]:
        waiting.over()
        given = {"epoch": leadership.epoch, **facts}
        return run_under(command, leadership.lost, given, environment, lease=lease, grace=grace), leadership

    with waiting:
        code, term = election.run(lead, timeout=timeout)
    note_unreleased(term.unreleased, lease)
    raise typer.Exit(code)
