"""One leader over all farms: ZooKeeper chooses it, and every farm's own store refuses its predecessors
(docs/protocols P21).

The candidates of all farms are one line in ZooKeeper. A term takes its fence in the store of its own farm, above every
epoch that ZooKeeper has kept, and seals it in the stores of all other farms before any work starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ...background import parallel_map
from ...deadline import Deadline
from ...errors import Corrupt, FencedOut, InvalidRequest, LatchworkError, Refused, Unavailable, Unreadable
from ...forks import called
from ...inputs import checked_kind, checked_timeout, checked_whole, farm_or_default
from ...logs import Log
from ...plain import shown
from ...seams import Event, Task
from ...store.connect import as_store
from ...store.decode import damaged
from ...store.model.expr import Bin, Param, missing
from ...store.model.ops import Put
from ...store.model.values import MAX_INT
from ...store.port import NEVER, Exists, Key, RecordStore
from ..contender import TRANSIENT, Contender, TakenLease
from ..farms import checked_farm
from ..fencing import Fenced, Lost
from ..lease import BINS, FENCE, LOCKED, MARK, LeaseView, checked_owner
from ..lock import LOCKS, Grant
from ..waits import INFINITY
from .election import RECOVERY, Leadership
from .znodes import MAX_EPOCH
from .zookeeper import LOOK, ZooKeeperElection

log = Log("latchwork.election")
MAX_RESOURCES = 100
"""Records that a new leader seals one after the other in each farm."""
_BELOW = missing(FENCE) | (Bin(FENCE) < Param("epoch")) | (Bin(FENCE).eq(Param("epoch")) & Bin(LOCKED).ne(1))


class FailedTerm(NamedTuple):
    """A term that did not begin, because some of the farms that it needs could not be sealed.

    fence: its epoch. ZooKeeper has kept it, so all later epochs are above it: to seal with it once more ends no term.
    farms: those that it needs and that could not be sealed.
    lost: never set.
    """

    fence: int
    farms: frozenset[str]
    lost: Lost


class GlobalElection(ZooKeeperElection):
    """An election of one leader over all farms, by one line in ZooKeeper. This handle is one candidate of one farm.

    Safe to share between threads; it cannot be pickled, and must not be used in a forked process.

    store_of_each_farm: farm id -> the store of that farm; each candidate is given all farms.
    name: the election; all its candidates use one name, and no lock or other election in any farm has it.
    zookeeper: a kazoo client or hosts, as `client_or_hosts` of `ZooKeeperElection`; one ensemble over all farms.
    prefer: farms, the most preferred first. All other farms come after them, with equal rank.
    farm_id: the farm of this candidate; default $LATCHWORK_FARM, else "local".
    resources: keys of records, at most 100, that a new leader seals in every farm (bin `fence`), besides the election's
        own record. A resource that is not named refuses a deposed leader once a later one has written to it there.
    all_farms: whether a term needs all farms. False: it begins without farms that cannot be reached, or whose records
        are damaged, other than its own; `unsealed` and a warning in the log name them, and they are sealed as soon as
        they answer, or are repaired. True: while a
        farm cannot be sealed no candidate leads, and `run` raises `WaitTimeout` with that reason.
    candidate: a name for people and logs; the line shows it as `farm/candidate`.
    path, lease: as in `ZooKeeperElection`.

    `leadership.operate` writes to the store of this candidate's farm. A farm that is cut off from ZooKeeper has no
    leader: its term ends at once. A farm whose store fails has none either: its candidates leave the line, and enter it
    again once that store takes writes.
    """

    def __init__(
        self,
        store_of_each_farm: Mapping[str, RecordStore],
        name: str,
        *,
        zookeeper: Any,
        prefer: Sequence[str] = (),
        farm_id: str | None = None,
        resources: Iterable[Key] = (),
        all_farms: bool = False,
        candidate: str | None = None,
        path: str = "/latchwork/global-elections",
        lease: float | None = None,
    ) -> None:
        self._stores = _checked_stores(store_of_each_farm)
        self.farm = farm_or_default(farm_id)
        (self.farm,) = self._known("farm_id", (self.farm,))
        self._prefer = self._known("prefer", prefer)
        self._resources, self._all_farms = _checked_resources(resources), checked_kind("all_farms", all_farms, bool)
        store = self._stores[self.farm]
        named = f"{self.farm}/{checked_owner(candidate, store.seams)}"
        super().__init__(store, name, zookeeper, candidate=named, path=path, lease=lease)
        self._above = 0
        """The highest epoch that another farm's store has shown when it refused a seal."""
        self._version = 0  # of what ZooKeeper has kept, when this candidate was first in the line
        self._unsealed: frozenset[str] = frozenset()
        self._failed: FailedTerm | None = None
        self._sealer: Task | None = None

    @property
    def unsealed(self) -> frozenset[str]:
        """The farms in which the present term of this candidate is not sealed yet. No I/O.

        A write of an earlier leader that was under way when it lost its term may still be accepted there.
        """
        return self._unsealed if self.leadership is not None else frozenset()

    def gives_way_to(self) -> str | None:
        """Return the most preferred farm that waits in the line and is preferred to this one; None if there is none.

        A leader asks this between two pieces of work, and gives up its term if a farm is returned. A round trip to
        ZooKeeper and one for each candidate; none if no farm is preferred to this one. Raises `Unavailable` if
        ZooKeeper does not answer.
        """
        own = self._rank(self.farm)
        if own == 0 or not self._prefer:
            return None
        farms = [name.partition("/")[0] for name in self.contenders()]
        return min((farm for farm in farms if self._rank(farm) < own), key=self._rank, default=None)

    def run_in_one_farm(
        self, job: Callable[[Leadership], object], *, every: float = 0.0, timeout: float | None = None
    ) -> int:
        """Call `job(leadership)` repeatedly while this candidate leads, and return how often it has returned.

        every: seconds between the end of a call and the next call of this candidate, also if that is in a later term.
            No pause follows a call whose term was lost before its end, as it may have been cut short.
        timeout: seconds; None = until `stop` is called in another thread. At its end the term is given up, so that
            `leadership.lost` is set, and a `job` that runs has 10 s to return.

        Called in every farm: one of them works at a time. Between two calls, and within a second while it waits for
        the next one, the leader gives way to a preferred farm that waits in the line; never during a call. If `job`
        raises, that is logged, the term is given up, and this candidate takes part again.

        Raises `InvalidRequest` if this candidate already takes part, and the error that only a changed setting can
        cure. Not promised: that one job ends before another farm's begins, where its leader was cut off; `job` calls
        `leadership.check()`, and writes by `leadership.operate`.
        """
        limit = checked_timeout(timeout)
        if every is None or checked_timeout(every, "every") is None:
            raise InvalidRequest(f"every is {shown(every)}; it must be the seconds between two calls")
        if not callable(job):
            raise InvalidRequest(f"job is a {type(job).__name__}; pass a function that takes the Leadership")
        done, due = 0, self._seams.monotonic()

        def work(leadership: Leadership) -> None:
            nonlocal done, due
            rest = due - self._seams.monotonic()  # of a pause that began in an earlier term
            if rest > 0 and self._gives_way(leadership, rest):
                return
            while not leadership.lost.is_set():
                called(job, leadership)
                done += 1
                if not leadership.lost.is_set():
                    due = self._seams.monotonic() + every
                if self._gives_way(leadership, every):
                    return

        if not self.start(work):
            raise InvalidRequest(f"{self!r} takes part already: call stop() first, or use another candidate")
        standing = self._standing
        try:
            if standing is not None:
                standing.join(limit)
        finally:
            self.stop()
        if self._failure is not None:
            raise self._failure
        return done

    def _gives_way(self, leadership: Leadership, pause: float) -> bool:
        """Wait for `pause` seconds. True as soon as a preferred farm waits in the line, which is read once a second."""
        end = self._seams.monotonic() + pause
        while True:
            with suppress(Unavailable):  # without ZooKeeper the term ends by itself
                preferred = self.gives_way_to()
                if preferred is not None:
                    log.info("%r gives way to the preferred farm %r", leadership, preferred)
                    return True
            rest = end - self._seams.monotonic()
            if rest <= 0 or leadership.lost.wait(min(rest, LOOK)):
                return False

    def step_down(self, epoch: int) -> bool:
        """Make the leader of this epoch step down, in whatever farm it is; else as `Election.step_down`. One store call
        a farm, until it is found.

        The next leader need not be of another farm: `prefer` and the line decide that.
        """
        checked_whole("epoch", epoch, 1, MAX_INT)
        failure: LatchworkError | None = None
        for store in self._stores.values():
            try:
                if Contender(store, Key(LOCKS, self.name), self.candidate, self.lease).seize(epoch, at_once=False):
                    return True
            except LatchworkError as error:  # the leader may be in another farm
                failure = failure or error
        if failure is not None:
            raise failure
        return False

    # ---- the way to a term

    def _chosen(self, stop: Event) -> Grant | None:
        self._find_able()
        return super()._chosen(stop)

    def _find_able(self) -> None:
        """Find out whether this candidate could lead, before it enters the line. Raises what keeps it from that.

        A leader gives way to a preferred farm that it sees in the line. But a candidate only reads until it is first,
        and a store may answer reads and refuse writes, as with a full disk. So it first writes to the election's
        record, to a bin that no guard reads; and if its last attempt could not seal some farms, it seals these again.
        """
        with Deadline(self._seams, self._patience / 2):
            self._store.operate(
                self._contender.key, *MARK, exists=Exists.ANY, or_absent=True, ttl=NEVER, repeatable=True
            )
        failed = self._failed
        if failed is not None:
            with suppress(FencedOut):  # a later term was sealed there, so it takes writes
                self._check_sealed(self._seal(failed, failed.farms))
            self._failed = None

    def _may_take(self) -> bool:
        """Let preferred farms go first; then make sure that the next fence of this farm's store is above all epochs.

        What ZooKeeper stores is read while this candidate is first in the line: another candidate that was first
        meanwhile has changed its version, and `_confirmed` notices that.
        """
        if self.gives_way_to() is not None:
            self._line.leave()  # and enters it again, at the end
            self._wake.set()
            return False
        kept, self._version = self._line.kept()
        with suppress(Refused):  # this store knows a later epoch, or holds this one
            _raise_fence(self._store, self.name, max(kept, self._above))
        return True

    def _confirmed(self, claim: TakenLease) -> Grant | None:
        grant = super()._confirmed(claim)
        if grant is None:
            return None
        try:
            _check_epoch(self._contender.key, self.farm, claim.fence)
            self._line.keep(claim.fence, self._version)
            self._unsealed = self._sealed_enough(grant)
            grant.check()
        except Refused as refusal:
            self._failure_log.record(refusal, f"{self!r} begins again, with a later epoch")
            self._quietly(grant.release)
            return None
        except BaseException:
            self._quietly(grant.release)
            raise
        if self._unsealed:
            self._failure_log.warn(f"{self!r} leads with epoch {grant.fence}, not sealed in {sorted(self._unsealed)}")
            seal = partial(self._seal_later, grant, self._unsealed)
            self._sealer = self._seams.spawn(seal, f"latchwork-seal-{self.name}")
        return grant

    def _sealed_enough(self, grant: Grant) -> frozenset[str]:
        """Seal the term in all farms, and return the farms that it begins without. Raises `Unavailable` for others."""
        unsealed = self._seal(grant, frozenset(self._stores))
        needed = unsealed if self._all_farms else unsealed & {self.farm}
        self._failed = FailedTerm(grant.fence, needed, Lost(self._seams, INFINITY)) if needed else None
        self._check_sealed(needed)
        return unsealed

    def _check_sealed(self, unsealed: frozenset[str]) -> None:
        """Raise `Unavailable` if there are farms that could not be sealed."""
        if unsealed:
            raise Unavailable(
                f"the next epoch of {self.name!r} cannot be sealed in {sorted(unsealed)}: the stores there do not "
                "answer or take no writes, or the log names a damaged record there; it is tried again",
                farms=sorted(unsealed),
            )

    def _seal(self, grant: Grant | FailedTerm, farms: frozenset[str]) -> frozenset[str]:
        """Seal the term in these farms, all at a time, and return the farms that could not be reached."""
        seal = partial(self._unreachable, grant)
        failed = parallel_map(self._seams, seal, sorted(farms), len(farms), f"latchwork-seal-{self.name}")
        return frozenset(farm for farm in failed if farm is not None)

    def _unreachable(self, grant: Grant | FailedTerm, farm: str) -> str | None:
        """Seal the term in one farm; return the farm if its store could not be reached, or its records are damaged.

        Raises `FencedOut` if the farm has seen a later epoch, and `Corrupt` if a record of this candidate's own farm is
        damaged.
        """
        store = self._stores[farm]
        try:
            with Deadline(store.seams, self._patience / 2):
                if farm != self.farm:
                    self._seal_record(farm, store, grant.fence)
                term = Fenced(store, self.name, grant.fence, grant.lost)
                for key in self._resources:
                    _seal_resource(farm, term, key)
        except TRANSIENT as failure:
            self._minor_failure_log.record(failure, f"{self!r}: the epoch {grant.fence} is not sealed in farm {farm!r}")
            return farm
        except (Corrupt, Unreadable) as damage:
            if farm == self.farm:
                raise
            self._failure_log.record(damage, f"{self!r}: farm {farm!r} cannot be sealed until it is repaired")
            return farm
        except FencedOut as refusal:
            self._above = max(self._above, refusal.details.get("seen", 0))
            raise
        return None

    def _seal_record(self, farm: str, store: RecordStore, epoch: int) -> None:
        try:
            _raise_fence(store, self.name, epoch)
        except Refused:
            key = Key(LOCKS, self.name)
            record = store.get(key, *BINS)
            seen = LeaseView.of(key, record.bins).fence if record else 0
            _check_epoch(key, farm, seen)
            if seen == epoch:
                raise InvalidRequest(
                    f"farms {shown(farm)} and {shown(self.farm)} have one store; give each farm the store of its own "
                    "cluster"
                ) from None
            raise FencedOut(
                f"farm {farm!r} has seen the epoch {seen} of {self.name!r}, and this term has {epoch}: another "
                "candidate leads; stop",
                seen=seen,
                fence=epoch,
            ) from None

    def _seal_later(self, grant: Grant, unsealed: frozenset[str]) -> None:
        """Seal the term in these farms as soon as they answer. A farm that has seen a later epoch ends the term."""
        while unsealed and not grant.lost.wait(RECOVERY):
            try:
                unsealed = self._seal(grant, unsealed)
            except Exception as failure:  # noqa: BLE001 - a term that cannot be sealed must not go on, whatever the reason
                self._failure_log.record(failure, f"{self!r}: the term with epoch {grant.fence} ends")
                grant.lost.set()
            if self._grant is grant:  # a farm may have answered so late that the next term has begun
                self._unsealed = unsealed

    def _leave(self) -> None:
        if self._sealer is not None:
            self._sealer.join(RECOVERY)
        super()._leave()

    # ---- farms

    def _known(self, what: str, farms: Sequence[str]) -> tuple[str, ...]:
        """Return these farms. Raises `InvalidRequest` if one is not there, or is named twice."""
        if isinstance(farms, str) or not isinstance(farms, Sequence):
            raise InvalidRequest(f"{what} is {shown(farms)}; pass a list of farms, the most preferred first")
        for place, farm in enumerate(farms):
            if not isinstance(farm, str) or farm not in self._stores:
                raise InvalidRequest(
                    f"{what} names the farm {shown(farm)}; there are {sorted(self._stores)}: name one, or give its "
                    "store"
                )
            if farm in farms[:place]:
                raise InvalidRequest(f"{what} names the farm {shown(farm)} twice; name it once")
        return tuple(farms)

    def _rank(self, farm: str) -> int:
        return self._prefer.index(farm) if farm in self._prefer else len(self._prefer)


def _seal_resource(farm: str, term: Fenced, key: Key) -> None:
    try:
        term.seal(key)
    except FencedOut as refusal:
        _check_epoch(key, farm, refusal.details.get("seen", 0))
        raise


def _check_epoch(key: Key, farm: str, epoch: int) -> None:
    """Raise `Corrupt` for an epoch that no farm can have come to: else all other farms would take it over."""
    if epoch > MAX_EPOCH:
        raise damaged(key, f"its fence in farm {farm!r} is {epoch}, above {MAX_EPOCH}, which no epoch comes to")


def _raise_fence(store: RecordStore, name: str, epoch: int) -> None:
    """Raise the fence of the election's record to this epoch, and end a term below it. Raises `Refused`."""
    store.operate(
        Key(LOCKS, name),
        Put(FENCE, epoch),
        Put(LOCKED, 0),
        when=_BELOW.bind(epoch=epoch),
        exists=Exists.ANY,
        or_absent=True,
        ttl=NEVER,
        repeatable=True,
    )


def _checked_stores(stores: Mapping[str, RecordStore]) -> dict[str, RecordStore]:
    if not isinstance(stores, Mapping) or not stores:
        raise InvalidRequest(f"store_of_each_farm is {shown(stores)}; pass the store of each farm, as {{farm: store}}")
    for farm in stores:
        if "/" in checked_farm(farm):
            raise InvalidRequest(
                f"farm id {shown(farm)} contains '/', which stands between farm and candidate: leave it out"
            )
    if len({id(as_store(store)) for store in stores.values()}) < len(stores):
        raise InvalidRequest(
            f"two of the farms {sorted(stores)} have one store; give each the store of its own cluster"
        )
    return dict(stores)


def _checked_resources(resources: Iterable[Key]) -> tuple[Key, ...]:
    keys = tuple(resources) if isinstance(resources, Iterable) else (resources,)
    wrong = [key for key in keys if not isinstance(key, Key)]
    if wrong:
        raise InvalidRequest(f"resources has {shown(wrong[0])}; pass keys of records, as Key(set, key)")
    if len(keys) > MAX_RESOURCES:
        raise InvalidRequest(
            f"resources has {len(keys)} keys; at most {MAX_RESOURCES}, as all are sealed at each election"
        )
    return keys
