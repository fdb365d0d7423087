"""`latchwork doctor`: what would fail in production, line by line, each with its remedy."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from ..coord import CountDownLatch
from ..errors import Corrupt, InvalidRequest, LatchworkError, NotFound, Unreadable
from ..observe.findings import OK, PROBLEM, WARNING, Finding, findings_of
from ..observe.findings.words import listed, of_queue
from ..observe.snapshot import ClientView, Snapshot, clients_in, view_of
from ..plain import counted, word
from ..queue import QueueRegistry, ShardedQueue
from ..queue.sharded.in_flight import in_flight
from ..queue.sharded.sweep_record import SweepRecord
from ..queue.sharded.workers import SILENT
from ..store.model.expr import SERVER_NOW
from ..store.model.ops import Compute, Put
from ..store.port import Exists, Key, RecordStore, StoreInfo
from .coord.farms import Elections, FarmStores, urls_of
from .coord.state import AskedNames, Barriers, Groups, Limiters, RWLocks, Semaphores, findings
from .finding_lines import lines_of
from .follow_ups import RESTORE, missing_follow_ups
from .session import Session, absent_file
from .unsettled import UNSETTLED, Unsettled, returns_within, unsettled_in

MAX_SKEW_MS = 500
MIN_JAVA = 17
JAVA_TIME = 20
"""Seconds that `java -version` may take."""
SQLITE_FULL, AEROSPIKE_FULL = 13, 8
"""The codes of a disk, or of a server, that is full."""
SQLITE_BUSY = (5, 6)
"""SQLite's codes for a file that another process writes to all the time."""
TAKES_NO_WRITES, NO_ANSWER = "full", "away"
"""The kinds of findings about a store that takes no writes, beside which the queues can be looked at all the same, and
about one that does not answer.
"""
BY_REPORTS = ("no_worker", "worker_died", "upkeep")
"""The kinds of findings that workers cause which do not report."""
MAX_CONNECTIONS = 10_000
MANY = 20
"""Clients from which on those with which nothing is wrong are only counted."""
MAX_IMBALANCE = 2.0
"""Shards on the fullest node over the mean; above it, more shards would serve more."""


def examine(store: RecordStore, where: str, *, processes: int, pool: int) -> Iterator[Finding]:
    """Yield the findings about the store at `where`. Writes one record of set `latchwork_doctor`, and deletes it."""
    info = store.describe()
    store.get(Key("latchwork_doctor", "-"))  # whether it answers: to describe a file opens none
    yield Finding(OK, f"connected: {info.backend}, {info.edition} edition, {where}")
    yield from settings_of(info)
    yield from _damage(store)
    yield _skew(store)
    if info.backend == "aerospike":
        yield connections(processes, pool)


def judged(part: str, said: str, wrong: str = "", remedy: str = "", state: str = WARNING) -> Finding:
    """Return that a part is sound; or the finding about it, if `wrong` says what is wrong."""
    return Finding(state, wrong, remedy) if wrong else Finding(OK, said, sound=part)


def settings_of(info: StoreInfo) -> Iterator[Finding]:
    """Yield what the settings of a store mean for its users."""
    is_server = info.backend == "aerospike"
    yield judged(
        "consistency",
        "strong consistency is on" if is_server else "every process sees each write at once",
        ""
        if info.strong_consistency
        else "AP mode: both sides of a network split accept writes, and one side's are lost when it heals; a cold "
        "restart can bring deleted records back",
        "use a strong-consistency namespace (Enterprise Edition) with ?require_sc=true, or accept it knowingly",
    )
    if is_server and info.replication_factor < 2:
        yield Finding(WARNING, "replication factor 1: the loss of a node loses records", "set replication-factor 2")
    if is_server and info.nsup_period == 0:
        what = "nsup-period is 0: writes with a time to live fail (code 22)"
        yield Finding(PROBLEM, what, "set nsup-period in the namespace, or allow-ttl-without-nsup true")
    elif info.nsup_period:
        yield Finding(OK, f"expired records are removed every {info.nsup_period} s", sound="expiry")
    yield judged(
        "default-ttl",
        "default-ttl is 0",
        ""
        if not info.default_ttl
        else f"default-ttl is {info.default_ttl} s: what other programs write without a time to live expires; what "
        "Latchwork writes so never does, for which some writes that make a record take two calls",
        "set default-ttl 0, unless those programs want it",
    )
    size = f"records may have up to {info.record_size_limit:,} bytes"
    small = size if info.record_size_limit < 1024 * 1024 else ""
    yield judged("record size", size, small, "set max-record-size to 1M; large latches and queue buffers need it")


def connections(processes: int, pool: int) -> Finding:
    """Return how many connections a node of a cluster gets."""
    text = f"{processes} processes x {pool} connections = up to {processes * pool:,} a node"
    many = text if processes * pool > MAX_CONNECTIONS else ""
    return judged("connections", text, many, "set ?connections=8 for Spark executors, or raise proto-fd-max")


def _names(store: RecordStore, client: str | None, farm: str | None) -> Iterator[Finding]:
    """Yield whether the names of sets and bins that are made of these ids are too long."""
    if client is None and farm is None:
        return
    try:
        named = "-" if client is None else client
        CountDownLatch.get(store, named, "-", farm_id=farm)
        QueueRegistry(store, named, farm_id=farm)
    except InvalidRequest as failure:
        yield Finding(PROBLEM, f"names: {failure}", "use another client or farm id")
    else:
        yield Finding(OK, "names of sets and bins fit", sound="names")


def _on_call(store: RecordStore, client: str | None, farm: str | None, absent: str) -> Iterator[Finding]:
    """Yield the findings about the queues of a client, and how the queues stand if there are none; of all clients of
    the store, if none is named.

    absent: the state of the finding that the client has no queue.
    """
    found = [client] if client is not None else clients_in(store, farm)
    if found is None:
        what = "no queues were looked at: this store cannot tell which clients there are"
        yield Finding(WARNING, what, "name a client: --client ID")
        return
    if not found:
        yield Finding(OK, "no client has queues here")
    well = []
    for one in found:
        view = view_of(QueueRegistry(store, one, farm_id=farm))
        try:
            taken = view.look()
        except (Corrupt, Unreadable) as failure:  # as of its election; the other clients are looked at all the same
            yield Finding(PROBLEM, f"client {one} cannot be looked at: {failure}", RESTORE, client=one)
            continue
        if not taken.queues and not taken.unreadable:
            yield _without_queues(store, taken, absent)
            continue
        wrong = [*findings_of(taken), *_follow_ups_of(taken, view)]
        # Of the queues of a client that was named, `_queue_damage` says more of what cannot be read.
        yield from (one for one in wrong if client is None or one.kind != "unreadable" or not one.queues)
        if len(found) > MANY and all(finding.state == OK for finding in wrong):
            well.append(one)  # a line of each would hide the others
            continue
        if client is not None:
            yield from _unsettled(taken, view.queues)
        leads = taken.leader is not None and taken.leader.leads
        if not any(finding.kind == "upkeep" or (finding.kind == "no_worker" and not leads) for finding in wrong):
            yield Finding(OK, f"upkeep of {one}: every queue was swept in time; {taken.upkeep}", client=one)
        yield Finding(OK, f"queues of {one}: {_standing(taken)}", client=one)
    if well:
        yield Finding(OK, f"nothing is wrong with {len(well)} of {len(found)} clients")


def _follow_ups_of(taken: Snapshot, view: ClientView) -> list[Finding]:
    try:
        return list(missing_follow_ups(taken, view.queues))
    except LatchworkError as failure:  # what was found of this client, and the other clients, are told all the same
        what = f"whether {taken.client} has follow-ups that were not published is not known: {failure}"
        return [Finding(WARNING, what, "look again once the store answers", client=taken.client)]


def _without_queues(store: RecordStore, taken: Snapshot, state: str) -> Finding:
    """Return that a client has no queue here, and what that may come from."""
    if taken.leader is not None:
        # Its election is the same in all farms, so perhaps only the farm is wrong.
        what = f"client {taken.client} has no queue here any more, in farm {word(taken.farm)}: {taken.upkeep}"
        remedy = "check --farm and $LATCHWORK_FARM; or, where the store came back empty, "
        remedy += "a program that uses a queue makes it again within 5 minutes; "
        return Finding(state, what, remedy + "its messages and schedules are lost", client=taken.client)
    others = clients_in(store, taken.farm)
    known = f"; the clients that have some: {', '.join(others[:MANY])}" if others else ""
    remedy = "check --client, $LATCHWORK_CLIENT, --farm and the store"
    return Finding(state, f"client {taken.client} has no queue here{known}", remedy, client=taken.client)


def _unsettled(taken: Snapshot, queues: Sequence[ShardedQueue]) -> Iterator[Finding]:
    """Yield the messages that workers which live could not settle: one finding for all. Two calls or more for each
    queue on which somebody works.
    """
    states, now = {state.name: state for state in taken.queues}, taken.at - taken.ahead
    found: list[tuple[str, Unsettled]] = []
    for queue in queues:
        state = states[queue.name]
        if state.stats.depth.fired and state.at_work:
            held, batches = in_flight(queue).held, queue.config.batching is not None
            found += ((queue.name, one) for one in unsettled_in(state, held, now, batches=batches))
    if found:
        each = listed([f"{one.messages:,} in {name} by {one.worker}" for name, one in found], 4)
        what = f"messages of {taken.client} are in hand though no handler works on them: {each}{UNSETTLED}"
        names = tuple(dict.fromkeys(name for name, _ in found))
        if taken.leader is not None and (not taken.leader.leads or taken.leader.is_new):
            remedy = "the store was away, or a new leader has begun: workers settle by themselves what they can; look "
            yield Finding(WARNING, what, f"{remedy}again in 30 s", "stranded", taken.client, names)
            return
        recover = f"latchwork queue recover {of_queue(names[0], taken)}"
        more = "" if len(names) == 1 else ", and so for each queue"
        what += f"; the sweep brings them back, {returns_within(max(one.left for _, one in found))}"
        remedy = f"sooner: kill -9 these workers, start others, and after {SILENT:.0f} s `{recover}`{more}"
        yield Finding(WARNING, what, remedy, "stranded", taken.client, names)


def _standing(taken: Snapshot) -> str:
    ready = sum(queue.stats.ready.waiting for queue in taken.queues)
    ago = {worker.worker: worker for queue in taken.queues for worker in queue.at_work}
    late = sum(worker.is_overdue for worker in ago.values())
    overdue = f" ({late} of them overdue by their last report)" if late else ""
    counts = (len(taken.queues), "queue"), (ready, "ready message"), (len(ago), "worker")
    return ", ".join(counted(n, noun) for n, noun in counts) + overdue


def _damage(store: RecordStore) -> Iterator[Finding]:
    """Yield the damage of the file, which is read as a whole; nothing for a store that has none."""
    damage: Callable[[], list[str]] | None = getattr(store, "damage", None)
    if damage is not None:
        found = "; ".join(damage())
        yield judged(
            "file",
            "every record and every index in the file is sound",
            found and f"the file is damaged: {found}",
            "stop the processes that use it, and restore it from a copy; where it is only its indexes, "
            "`latchwork.connect(...).reindex()` rebuilds them",
            PROBLEM,
        )


def _skew(store: RecordStore) -> Finding:
    key = Key("latchwork_doctor", store.seams.unique())
    began = store.seams.wall()
    (server,) = store.operate(key, Put("probe", 1), Compute(SERVER_NOW), exists=Exists.ANY, ttl=60)
    ended = store.seams.wall()
    store.delete(key)
    skew, slack = server - (began + ended) * 500, (ended - began) * 500
    text = f"this clock and the server's differ by {round(skew):+d} ms (give or take {slack:.0f})"
    wrong = text if abs(skew) > MAX_SKEW_MS + slack else ""
    return judged("clock", text, wrong, "let both follow NTP; leases are safe, but stored dates are wrong")


def _placement(store: RecordStore, client: str | None, farm: str | None) -> Iterator[Finding]:
    """Yield how the pointer records of each queue's shards are spread over the nodes; the fullest node limits the
    queue.
    """
    mastered: Callable[[list[Key]], dict[str, int]] | None = getattr(store, "mastered", None)
    if client is None or mastered is None:
        return
    for queue, _ in QueueRegistry(store, client, farm_id=farm).listed():
        shards = queue.config.shards
        loads = mastered([queue.pointers.pointers_key(shard) for shard in range(shards)])
        worst, mean = max(loads.values()), shards / len(loads)
        text = f"shards {shards}, nodes {len(loads)}, shards on the fullest node {worst}"
        text = f"queue {queue.name} of {client}: {text}"
        if worst > MAX_IMBALANCE * mean:
            yield Finding(WARNING, text, "more shards spread better (docs/scaling.md); a queue keeps its number")
        else:
            yield Finding(OK, text, client=client, queues=(queue.name,), sound="placement of shards")


def _queue_damage(store: RecordStore, client: str | None, farm: str | None) -> Iterator[Finding]:
    """Yield the damaged records of queues, and the damaged pointers of their shards."""
    if client is None:
        return
    registry = QueueRegistry(store, client, farm_id=farm)
    listed, unreadable = registry.scan(active=None)
    for name, failure in unreadable.items():
        remedy = "until then nobody can consume it, nor is it swept"
        yield Finding(PROBLEM, f"queue {name} of {client}: {failure}", remedy, "", client, (name,))
    sound = []
    for queue, bins in listed:
        try:
            found = list(_damage_of_queue(queue, bins))
        except NotFound:
            what = f"group {queue.name} of {client} is being made, or dropped, or was left so"
            found = [(WARNING, what, "if it stays so, drop it: `latchwork queue group drop`")]
        yield from (Finding(state, what, remedy, "", client, (queue.name,)) for state, what, remedy in found)
        sound += [] if found else [queue.name]
    if sound:
        queues = counted(len(sound), "queue")
        what = f"queues of {client}: the records of {queues}, and the pointers of their shards, are sound"
        yield Finding(OK, what, "", "", client, tuple(sound), f"records of {queues}")


def _damage_of_queue(queue: ShardedQueue, bins: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the damage of a queue: the state, the text and the remedy."""
    name = f"queue {queue.name} of {queue.registry.client_id}"
    for state in (state for states in queue.states() for state in states if state.damage):
        remedy = (
            "the sweeper brings its messages to other shards, or to the sideline if the queue does not retry; when the "
            "reports count none of it any more, delete the record, and the shard starts again at 1"
        )
        yield PROBLEM, f"{name}: {state.damage}", remedy
    control = queue.delayed.control
    try:
        is_damaged = queue.delayed.waiting().is_damaged
    except (Corrupt, Unreadable):
        is_damaged = True
    if is_damaged:
        what = f"{name}: the record {control.set}/{control.name} is damaged, which says how many delayed messages wait"
        yield PROBLEM, what, "restore it from a copy; do not delete it: what is delayed now might not come then"
    try:
        notes = SweepRecord.of(queue.registry.records.key(queue.name), bins, now=int(queue.store.seams.wall() * 1000))
    except Corrupt as failure:
        yield PROBLEM, f"{name}: {failure}", "until then it is not swept"
    else:
        if notes.repairs:
            what = f"{name}: {', '.join(notes.repairs)} in its record are damaged"
            yield WARNING, what, "the next sweep repairs them"


def _zookeeper(hosts: str | None) -> Iterator[Finding]:
    if hosts is None:
        return
    try:
        client = KazooClient(hosts=hosts, timeout=10)
    except ValueError as failure:
        yield Finding(PROBLEM, f"ZooKeeper {hosts!r}: {failure}", "give host:port[,host:port...]")
        return
    try:
        client.start(timeout=5)
        yield Finding(OK, f"ZooKeeper {hosts}: session of {client._session_timeout / 1000:.0f} s granted")  # noqa: SLF001 - kazoo tells it nowhere else
    except (KazooException, KazooTimeoutError, OSError, ValueError) as failure:
        yield Finding(PROBLEM, f"ZooKeeper {hosts}: {failure}", "check the hosts and the firewall")
    finally:
        client.stop()
        client.close()


def _java() -> Iterator[Finding]:
    if shutil.which("java") is None:
        yield Finding(WARNING, "no Java", f"Spark needs a JDK {MIN_JAVA} or newer; nothing else here does")
        return
    try:
        output = subprocess.run(
            ["java", "-version"],  # noqa: S607 - the java of the PATH is the one Spark takes
            capture_output=True, text=True, check=False, timeout=JAVA_TIME,
        ).stderr  # fmt: skip
    except subprocess.TimeoutExpired:
        what = f"Java did not answer within {JAVA_TIME:g} s"
        yield Finding(WARNING, what, "`java -version` should answer at once: is this machine overloaded?")
        return
    except OSError as failure:  # no program, or not one for this machine
        yield Finding(WARNING, f"Java cannot be run: {failure}", f"install JDK {MIN_JAVA}; only Spark needs it")
        return
    found = re.search(r'"(\d+)', output)
    text = f"Java {found.group(1) if found else 'of unknown version'}"
    old = found is None or int(found.group(1)) < MIN_JAVA
    yield judged("Java", text, text if old else "", f"install JDK {MIN_JAVA}")


def _spark() -> Iterator[Finding]:
    try:
        pyspark = version("pyspark")
    except PackageNotFoundError:
        yield Finding(OK, "PySpark is not installed: the Spark parts are off (extra `spark`)", sound="no PySpark")
        return
    text, old = f"PySpark {pyspark}", tuple(int(part) for part in pyspark.split(".")[:2]) < (4, 2)
    yield judged("PySpark", text, text if old else "", "the stream source needs 4.2 or newer")


def doctor(
    context: typer.Context,
    processes: Annotated[int, typer.Option(min=1, help="processes that will connect, e.g. all Python workers")] = 1,
    pool: Annotated[int, typer.Option(min=1, help="connections of each process to each node")] = 100,
    zookeeper: Annotated[str | None, typer.Option(help="host:port[,...] of the ZooKeeper to try")] = None,
    client: Annotated[
        str | None,
        typer.Option(
            envvar="LATCHWORK_CLIENT",
            help="the client to check: its queues, and the length of names made of its id [default: all]",
        ),
    ] = None,
    farm: Annotated[str | None, typer.Option(help="the farm to check, and the length of names made of its id")] = None,
    group: Groups = None,
    semaphore: Semaphores = None,
    rwlock: RWLocks = None,
    barrier: Barriers = None,
    limiter: Limiters = None,
    election: Elections = None,
    farm_store: FarmStores = None,
) -> None:
    """Find what will cause trouble, and print a line for each thing, with the remedy. Exit code 1 if something will not
    work, or a person must act.

    Of the queues of a client it finds: who paused a queue, a backlog without a worker, messages that are about to
    expire, parked messages, more failures than successes, messages that nothing brings back, upkeep that is overdue,
    workers and leaders that died, and a change of settings that a worker has not acted on. A killed worker is noticed
    within a minute. Without --client and $LATCHWORK_CLIENT it looks at all clients of the farm. Problems come last.

    It checks groups, semaphores, read-write locks, barriers, rate limiters and elections over all farms that you name:
    members that died, a barrier that was broken, a writer that died, permits of dead holders, counts ahead of the
    clock, farms where the epoch of the latest leader is not sealed.

    Example: latchwork doctor --store aerospike://db1:3000/latches --processes 400 --pool 8 --zookeeper zk1:2181
    """
    session: Session = context.obj
    farms = session.stores_of(urls_of(context, farm_store))
    wanted = AskedNames.of(
        client, election, farms, group=group, semaphore=semaphore, rwlock=rwlock, barrier=barrier, limiter=limiter
    )
    absent = WARNING if barrier else PROBLEM  # a client may have barriers alone
    found = _of_store(session, wanted, farm, absent, processes=processes, pool=pool)
    found += [*_zookeeper(zookeeper), *_java(), *_spark()]
    if session.json:
        session.table([finding.row for finding in found])
    else:
        session.say(*lines_of(found))
    if any(finding.state == PROBLEM for finding in found):
        raise typer.Exit(1)


def _of_store(
    session: Session, wanted: AskedNames, farm: str | None, absent: str, *, processes: int, pool: int
) -> list[Finding]:
    """Return the findings about the store, and if it works, about the clients and the names in it.

    absent: the state of the finding that the client has no queue.
    """
    store, client = session.named_store, wanted.client
    names = list(_names(store, client, farm))
    if (file := absent_file(store)) is not None:  # the first call would make it, and find nothing wrong with it
        what = f"there is no file {file}: the first program that writes makes it"
        state = WARNING if wanted.farms else PROBLEM  # the farms may be all that is used
        found = [Finding(state, what, f"check {session.where}: the file and its directory")]
        elections = AskedNames(elections=wanted.elections, farms=wanted.farms)
        return found + _found(session, lambda: findings(store, elections)) + names
    found = _found(session, lambda: examine(store, session.where, processes=processes, pool=pool))
    if not any(one.kind == NO_ANSWER for one in found) and all(one.state == OK for one in names):
        found += _found(session, lambda: _placement(store, client, farm))
        found += _found(session, lambda: _queue_damage(store, client, farm))
        on_call = _found(session, lambda: _on_call(store, client, farm, absent))
        if any(one.kind == TAKES_NO_WRITES for one in found) and any(one.kind in BY_REPORTS for one in on_call):
            what = "whether workers live is not known: the store takes no writes, so they cannot report"
            on_call = [one for one in on_call if one.kind not in BY_REPORTS] + [Finding(WARNING, what)]
        found += on_call
        found += _found(session, lambda: findings(store, wanted))
    return found + names


def _found(session: Session, examination: Callable[[], Iterator[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(examination())
    except LatchworkError as failure:
        kind, code = "", failure.details.get("sqlite")
        if isinstance(failure, InvalidRequest) and not isinstance(failure, Corrupt):  # of a name; nothing was asked
            what, remedy = f"names: {failure}", "correct this name"
        elif code == SQLITE_FULL or failure.details.get("server_code") == AEROSPIKE_FULL:
            kind, what = TAKES_NO_WRITES, f"the store takes no writes: {failure}"
            remedy = (
                "free memory or disk there, or add a node" if session.is_remote else "free some space there (`df -h`)"
            )
            remedy += "; its programs then go on by themselves"
        elif code in SQLITE_BUSY:
            kind, what = NO_ANSWER, f"the store takes no writes: {failure}"
            remedy = f"`fuser -v {session.where.removeprefix('sqlite:')}` says which process holds it"
        elif isinstance(failure, Corrupt | Unreadable) and code is None:  # else the file as a whole is none
            what, remedy = f"a record is damaged, and what needs it was not looked at: {failure}", RESTORE
        else:
            parts = "host, port, namespace, user" if session.is_remote else "the file and its directory"
            kind, what = NO_ANSWER, f"the store does not answer: {failure}"
            remedy = f"check {session.where}: {parts}"
        found.append(Finding(PROBLEM, what, remedy, kind))
    return found
