"""A step that is done once, with any effect: one party works on it at a time, and its result is kept (docs/protocols
P23).

    with once(store, key="invoice 7", keep=timedelta(days=30)) as step:
        if not step.done:
            step.result = bank.charge(invoice, idempotency_key=step.token)
    return step.result
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ...deadline import Deadline
from ...errors import (
    FencedOut,
    InvalidRequest,
    LatchworkError,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unreadable,
)
from ...forks import reset_in_child
from ...inputs import checked_callable, checked_seconds, checked_text, checked_timeout, in_a_call, is_async, is_int
from ...plain import one_line, shown
from ...retry import may_pass, outlive
from ...store.connect import as_store
from ...store.decode import damaged
from ...store.model.expr import SERVER_NOW, Bound, Expr, ListOf, Param, lacks
from ...store.model.ops import MapPut, Op, Touch
from ...store.model.values import MAX_DEPTH, bound, taken
from ...store.port import MAX_TTL, NEVER, Key, RecordStore
from ...unpicklable import Unpicklable
from .. import lease as rules
from ..contender import Acquisition, Contender, TakenLease
from ..lease import Observation, checked_lease, checked_owner
from ..lock import LOCK_POLL, Grant, granted
from ..waits import Answer
from .marks import token_of

P = ParamSpec("P")
R = TypeVar("R")

ONCE = "latchwork_once"
"""The set of the steps of `once`."""
DONE, RESULTS = "done", "results"
MAX_RESULT = 65_536
"""Bytes of a result, by which its record stays small."""
_YEAR_10000 = 253_402_300_800_000
"""In ms; a later time cannot be shown."""
LEASE, PATIENCE = 10.0, 30.0
"""Seconds."""
DAY = timedelta(days=1)
MIN_KEEP = 60.0

_ON_LOOP = "use latchwork.aio, its once or its deliveries, which await it"
_DONE_BY = ListOf((Param("fence"), SERVER_NOW))
_NOT_DONE: Expr = lacks(DONE, Param("step", str))


class Step:
    """A step within its block: whether it is done, its result, its token and its fence.

    done: an earlier attempt has done it: skip the work, and use its `result`.
    token: the same in every attempt: give it to a provider as its idempotency key.
    fence: of this attempt, greater than that of every earlier one; of a step that is done, that of the attempt that has
        done it.

    Safe to share between threads; the last result that is set counts.
    """

    def __init__(
        self,
        label: str,
        token: str,
        fence: int,
        *,
        done: DoneStep | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.token, self.fence, self.done = token, fence, done is not None
        self._label, self._check = label, check
        self.kept: list[Any] | str = [None] if done is None else done.kept
        """What later attempts find: a list with the result, or why that could not be kept."""

    def __repr__(self) -> str:
        return f"Step({self._label!r}, fence={self.fence}, done={self.done})"

    @property
    def cannot_be_kept(self) -> bool:
        """Whether it has a result that could not be kept."""
        return isinstance(self.kept, str)

    @property
    def result(self) -> Any:
        """The result, as it was set in this block, or kept; None where none was set.

        Raises `Unreadable` if it could not be kept.
        """
        if isinstance(self.kept, str):
            raise Unreadable(
                f"{self._label} was done, and its result could not be kept: {one_line(self.kept)}. It is not done "
                "again: go on without the result where step.done"
            )
        return self.kept[0]

    @result.setter
    def result(self, value: Any) -> None:
        """Set what is kept and handed to later attempts: what a bin can hold, at most 64 KiB.

        Raises `InvalidRequest` or `RecordTooBig` if it cannot be kept: the step counts as done nevertheless, and later
        attempts learn why they get no result. Raises `InvalidRequest` if the step is done; and for a coroutine, of
        which nothing has run: then nothing is set.
        """
        if self.done:
            raise InvalidRequest(f"{self._label} is done: skip the work where step.done, and use step.result")
        if inspect.iscoroutine(value):
            value.close()  # Python warns about a coroutine that is never awaited
            raise InvalidRequest(f"the result of {self._label} is a coroutine, and nothing of it ran: {_ON_LOOP}")
        try:
            kept = taken(value, MAX_DEPTH - 1)
            if bound(kept) > MAX_RESULT:
                raise RecordTooBig(f"it may have more than {MAX_RESULT} bytes: keep what names it, as an id")
        except InvalidRequest as failure:
            self.kept = str(failure)
            raise type(failure)(
                f"the result of {self._label} cannot be kept: {failure}. The step counts as done: it is not done "
                "again, and later attempts get no result"
            ) from None
        self.kept = [kept]

    def check(self) -> None:
        """Raise `FencedOut` if another attempt may have taken the step over. No call. Advisory: see `fence`."""
        self._check()


class OnceStep(Unpicklable):
    """A step that is done once. Use it with `with`, which gives a `Step`; or by `run`; or as a decorator.

    token: the same in every attempt: give it to a provider as its idempotency key.

    Use a handle in one thread at a time, and for one block at a time. The blocks of all handles with one key, in all
    processes, exclude each other.
    """

    _INSTEAD = "pickle the store, and call `once` with the same key where the step is done"

    def __init__(
        self,
        store: RecordStore,
        key: Key,
        name: str,
        token: str,
        *,
        label: str,
        keep: int,
        timeout: float | None,
        lease: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.token = token
        self._store, self._key, self._name, self._label = store, key, name, label
        self._keep, self._timeout, self.lease, self._check = keep, timeout, lease, check
        self._contender = StepContender(store, key, checked_owner(None, store.seams), lease, step=name, keep=keep)
        self._step: Step | None = None
        self._grant: Grant | None = None
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Leave the end of a block to the parent: a child that ends inside it has not done the step."""
        self._step = self._grant = None

    def __repr__(self) -> str:
        return f"OnceStep({self._label!r})"

    def __enter__(self) -> Step:
        """Wait until nobody else works on the step, and return it: done, or for this block to do.

        One call where it is free, two where it is done. Raises `LockUnavailable` where somebody else still
        works on it after the timeout, `FencedOut` where this attempt was replaced, and the store's errors.
        """
        if self._step is not None:
            raise InvalidRequest(f"{self!r} is in a block already: make another handle")
        self._grant = None  # of a block that was interrupted as it began or ended: else it would be renewed forever
        self._store.seams.may_wait("OnceStep.run", self._timeout)
        self._check()
        try:
            # On a clock that a test moves, a renewal in the background would move it.
            take, renewed = partial(Grant, self._label, self._contender, self._wait()), self._store.seams.time_passes
            self._grant = granted(take, keep_alive=renewed)  # no variable has it, which a traceback would keep
            self._step = Step(self._label, self.token, self._grant.fence, check=self._grant.check)
        except _StepDone as found:
            self._step = self._as_done(found.done)
        return self._step

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Keep the result, and let others go on; where the block raised, remember nothing. One call.

        Raises `FencedOut` if another attempt has taken the step over: its result counts. Raises `OutcomeUnknown` or
        `Unavailable` if the store was away for a whole lease: then the step may be done again, with the same token.
        """
        step, self._step = self._step, None
        grant, self._grant = self._grant, None
        if step is None or grant is None:
            return
        if error is not None and not step.cannot_be_kept:
            grant.__exit__(kind, error, trace)
            return
        try:
            with Deadline(self._store.seams, self.lease) as deadline:
                finish = partial(self._contender.finish, step.fence, step.kept)
                outlive(self._store.seams, deadline, finish, passing=may_pass)
            self._store.seams.note("effects", kind="step", outcome="done")
        except LatchworkError:
            if error is None:
                raise
        finally:
            grant.give_up()  # nothing is renewed after the block

    def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of `work(*args, **kwargs)`, which is called unless the step is done.

        The result must be what a bin can hold: text, bytes, numbers, None, lists and maps. Raises what `work` raises,
        and what the block does; what it raised is not kept, and the next attempt calls it again. A result that cannot
        be kept is an error, too; but `work` is not called again, as it has been done. Raises `InvalidRequest` for an
        async function, which is not called.
        """
        checked_work(work)
        with self as step:
            if not step.done:
                step.result = work(*args, **kwargs)
        found: R = step.result
        return found

    def __call__(self, work: Callable[P, R]) -> OnceFunction[P, R]:
        """Decorate a function that is called once, whatever its arguments; later calls return its result."""
        return OnceFunction(work, lambda *_, **__: self.another())

    def another(self) -> OnceStep:
        """Return another handle of the same step, for another block. No call."""
        return OnceStep(
            self._store, self._key, self._name, self.token,
            label=self._label, keep=self._keep, timeout=self._timeout, lease=self.lease, check=self._check,
        )  # fmt: skip

    def _wait(self) -> TakenLease:
        """Return the lease of the step, once it is free. Raises `_StepDone`, `LockUnavailable`, the store's errors."""
        seams = self._store.seams
        with Deadline(seams, self._timeout) as deadline:
            acquisition = StepAcquisition(self._contender)
            claim = outlive(seams, deadline, acquisition.at_once, passing=may_pass)
            if claim is None and self._timeout != 0:
                # Without marks of waiting parties: with them the record would not expire.
                claim = acquisition.wait(LOCK_POLL, deadline=deadline, mark=False)
        if claim is None:
            raise LockUnavailable(
                f"{self._label} is under way: {self._holder()}; ask again later, or wait longer", key=self._key
            )
        return claim

    def _holder(self) -> str:
        seen = self._contender.observed
        if seen is None or not seen.view.locked:
            return "others were faster"
        return f"{seen.view.owner!r} works on it, with fence {seen.view.fence} and a lease of {seen.view.lease} s"

    def _as_done(self, done: DoneStep) -> Step:
        """Return the step as an earlier attempt has done it. No call; one once half of its time is over."""
        if 0 < self._contender.left < self._keep / 2:
            with suppress(LatchworkError):  # what it has read counts; the next attempt that finds it does so
                self._store.operate(self._key, Touch(), ttl=self._keep, repeatable=True)
        self._store.seams.note("effects", kind="step", outcome="found")
        return Step(self._label, self.token, done.fence, done=done)


@dataclass(frozen=True, slots=True)
class DoneStep:
    """What is kept of a step that is done.

    fence: of the attempt that has done it.
    at: when, in ms by the server's clock.
    kept: a list with the result, or why that could not be kept.
    """

    fence: int
    at: int
    kept: list[Any] | str


def done_in(key: Key, bins: Mapping[str, Any]) -> dict[str, DoneStep]:
    """Return the steps that are done by the bins of their record, by name. Raises `Corrupt` where these are damaged."""
    done, kept = bins.get(DONE, {}), bins.get(RESULTS, {})
    if isinstance(done, dict) and isinstance(kept, dict):
        steps = {name: _done_step(by, kept.get(name)) for name, by in done.items() if isinstance(name, str)}
        sound = {name: step for name, step in steps.items() if step is not None}
        if len(sound) == len(done):
            return sound
    raise damaged(key, f"bins {DONE!r} and {RESULTS!r} are not as steps leave them")


def _done_step(by: Any, kept: Any) -> DoneStep | None:
    """Return the step by its entries in the two bins; None where these are damaged."""
    whole = isinstance(by, list) and len(by) == 2 and all(map(is_int, by)) and 0 <= by[1] < _YEAR_10000
    readable = isinstance(kept, str) or (isinstance(kept, list) and len(kept) == 1)
    return DoneStep(by[0], by[1], kept) if whole and readable else None


class OnceFunction(Generic[P, R]):
    """A function that is called once for each key; later calls return the result of the first. Safe to share between
    threads.
    """

    def __init__(self, work: Callable[P, R], step: Callable[P, OnceStep]) -> None:
        checked_work(work)
        self.step = step
        """Return the step of these arguments, as for its `token`. No call."""
        self._work = work
        update_wrapper(self, work)

    def __get__(self, instance: object, owner: type) -> Callable[..., R]:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.step(*args, **kwargs).run(self._work, *args, **kwargs)


def checked_work(work: Callable[..., object]) -> None:
    """Raise `InvalidRequest` unless a call of the function does its work."""
    if is_async(checked_callable("the function", work)):
        raise InvalidRequest(f"{shown(work)} is an async function, whose result comes later: {_ON_LOOP}")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in in_a_call(work)):
        raise InvalidRequest(f"{shown(work)} has a `yield`, so a call of it runs nothing: return a list instead")


@overload
def once(
    store: RecordStore, *, key: str, keep: timedelta | float = ..., timeout: float | None = ..., lease: float = ...
) -> OnceStep: ...


@overload
def once(
    store: RecordStore,
    *,
    key: Callable[..., str | int],
    keep: timedelta | float = ...,
    timeout: float | None = ...,
    lease: float = ...,
    name: str | None = ...,
) -> Callable[[Callable[P, R]], OnceFunction[P, R]]: ...


def once(
    store: RecordStore,
    *,
    key: str | Callable[..., str | int],
    keep: timedelta | float = DAY,
    timeout: float | None = PATIENCE,
    lease: float = LEASE,
    name: str | None = None,
) -> OnceStep | Callable[[Callable[P, R]], OnceFunction[P, R]]:
    """Return a step that is done once for its key, by any process: use it with `with`, by `run`, or as a decorator.

    key: names the step among all steps of the store, 1 to 1,000 characters. A function of the arguments makes the
        decorator of a function, which is called once for each key that it returns.
    keep: seconds or a timedelta, a minute to ten years, for which it is remembered.
    timeout: seconds to wait while somebody else works on it; 0 = do not wait, None = no limit.
    lease: seconds, after which somebody else may go on with it if its process has died.
    name: of the decorated function, if another than its module and name: a function that was renamed keeps it.

    Two calls, two where it is done, and one for each third of the lease that the work takes. Where the work raises,
    nothing is remembered, and the next attempt does it again.

    Not promised: that an effect outside of the store happens once, if its process dies between the effect and the end
    of the block. Then the next attempt repeats it, with the same `token`, by which a provider recognises it.
    """
    make = steps(as_store(store), key, name, keep=keep, timeout=timeout, lease=lease)
    if isinstance(key, str):
        return make(key)

    def decorate(work: Callable[P, R]) -> OnceFunction[P, R]:
        return OnceFunction(work, of_call(make, key, work, name))

    return decorate


def steps(
    store: RecordStore, key: object, name: str | None, *, keep: timedelta | float, timeout: float | None, lease: float
) -> Callable[[str], OnceStep]:
    """Return the function that makes the step of a key; the arguments are those of `once`. Raises `InvalidRequest`."""
    if not isinstance(key, str):
        checked_callable("key", key)
    elif name is not None:
        raise InvalidRequest("name with a key that is text: the key alone names the step")
    seconds, limit, length = checked_keep(keep), checked_timeout(timeout), checked_lease(lease)

    def step_of(key: str) -> OnceStep:
        checked_text("key", key)
        if len(key) > 1_000:
            raise InvalidRequest(
                f"key {shown(key)} has {len(key)} characters; at most 1,000: use a shorter name, or a hash"
            )
        token, label = token_of("once", key).hex(), f"the step {shown(key)}"
        return OnceStep(store, Key(ONCE, key), "", token, label=label, keep=seconds, timeout=limit, lease=length)

    return step_of


def of_call(
    make: Callable[[str], OnceStep], key_of: Callable[..., str | int], work: Callable[P, object], name: str | None
) -> Callable[P, OnceStep]:
    """Return the function that makes the step of a call of `work`. Raises `InvalidRequest`."""
    scope = name or f"{checked_callable('the function', work).__module__}.{work.__qualname__}"
    return lambda *args, **kwargs: make(f"{scope}/{_text(key_of(*args, **kwargs))}")


def _text(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidRequest(f"the key of a call is {shown(key)}; it must be text or a whole number")
    return str(key)


def checked_keep(keep: timedelta | float) -> int:
    """Return how long something is remembered, in whole seconds, never fewer than asked. Raises `InvalidRequest`."""
    return math.ceil(checked_seconds("keep", keep, MIN_KEEP, MAX_TTL))


# ---- the lease, which is refused where the step is done


class _StepDone(Exception):
    """The step is done."""

    def __init__(self, done: DoneStep) -> None:
        super().__init__()
        self.done = done


class StepContender(Contender):
    """One party that wants to do a step. Its acquisitions are refused where the step is done."""

    _bins: tuple[str, ...] = (*rules.BINS, DONE, RESULTS)

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float, *, step: str, keep: int) -> None:
        # While a party works on it, the record outlives the lease: without it, others would find the step free.
        ttl = max(keep, math.ceil(2 * lease))
        super().__init__(store, key, owner, lease, also=_NOT_DONE.bind(step=step), ttl=ttl)
        self.step, self.keep, self.left = step, keep, NEVER
        self.done: DoneStep | None = None

    def observe(self, answer: Answer) -> Observation | None:
        """Remember the lease as it was read, and whether the step is done."""
        record = answer.record
        self.done = done_in(self.key, record.bins).get(self.step) if record else None
        self.left = record.ttl if record else NEVER
        return super().observe(answer)

    def finish(self, fence: int, kept: list[Any] | str) -> None:
        """Keep that the step is done, with its result, and release the lease. One call.

        Raises `FencedOut` if another attempt has taken it over.
        """
        began = self.store.seams.monotonic()
        try:
            try:
                self._keep(fence, kept)
            except RecordTooBig as failure:
                self._keep(fence, f"its record has no room for it: {failure}")
        except (Refused, NotFound):
            self._check_mine(fence)
        self._released(None, began)

    def _keep(self, fence: int, kept: Any) -> None:
        ops: tuple[Op, ...] = (
            MapPut(DONE, self.step, Bound(_DONE_BY, {"fence": fence})),
            MapPut(RESULTS, self.step, kept),
            *rules.RELEASE,
        )
        self.store.operate(self.key, *ops, when=rules.held(fence), ttl=self.keep, repeatable=True)

    def _check_mine(self, fence: int) -> None:
        """Raise `FencedOut` unless it was this attempt that has done the step, in an update that was not answered."""
        try:
            record = self.store.get(self.key, DONE, RESULTS)
        except LatchworkError as failure:
            raise OutcomeUnknown(
                f"whether the step {self.step!r} of {self.key} is done could not be read ({failure.code})", key=self.key
            ) from failure
        done = done_in(self.key, record.bins if record else {}).get(self.step)
        if done is None or done.fence != fence:
            self.store.seams.note("fences_refused", by="resource")
            raise FencedOut(
                f"the step {self.step!r} of {self.key} was taken over by another attempt, whose result counts: its "
                "lease was not renewed in time",
                key=self.key,
                fence=fence,
            )


class StepAcquisition(Acquisition):
    """One acquisition of a step's lease. Its looks raise `_StepDone` where the step is done."""

    _contender: StepContender

    def _see(self, *, waiting: bool = False) -> Observation | None:
        seen = super()._see(waiting=waiting)
        if self._contender.done is not None:
            raise _StepDone(self._contender.done)
        return seen

    def _worth(self, answer: Answer) -> bool:
        return super()._worth(answer) or self._contender.done is not None
