"""The Aerospike backend: operations and guards become one `operate` with a filter expression, without UDFs.

Nothing here retries: the port does, which knows what may be repeated. What Aerospike itself does not promise: in an AP
namespace both sides of a network split accept writes and one side's are dropped when they meet, and deletes are not
durable (a cold restart can bring records back). `require_sc=True` refuses to work on such a namespace. In a strongly
consistent one each deletion leaves a tombstone, without which the server refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aerospike
from aerospike import predicates
from aerospike_helpers.batch.records import Read, Remove, Write

from ...errors import InvalidRequest, LatchworkError, Misconfigured, NotFound, Refused
from ...inputs import checked_store_name, checked_switch
from ...logs import Log
from ...seams import SYSTEM, Seams
from ..model import ops as o
from ..port import KEEP, NEVER, Exists, Key, Record, RecordStore, Removal, Row, StoreInfo, Update, Values
from . import info
from .batch import read_fault, read_rows, write_rows
from .connection import Link, shared_link
from .default_ttl import may_make, update_or_create, update_or_create_many
from .ops import ByName, InOrder, request_of
from .policies import DURABLE, ONE_TRY, ROW, WRITE, Policy, policy_of, removing
from .prepared import ready_of
from .results import FAILURES, FORBIDDEN, NOT_FOUND, ClientFault, error_of, fault_of
from .rows import BatchRow, BatchRows
from .text import lenient, strange_bin
from .url import parse

log = Log(__name__)

_ANY = Exists.ANY


class AerospikeStore(RecordStore):
    """Records of one namespace, through a client that the caller made, owns and closes. Safe to share between threads.

    Such a store cannot be pickled and does not survive a fork; `from_url` makes one that does both.
    """

    def __init__(self, client: Any, namespace: str, *, require_sc: bool = False, seams: Seams = SYSTEM) -> None:
        super().__init__()
        self.seams = seams
        self.namespace = checked_store_name("namespace", namespace)
        self._link = Link(client=client, namespace=namespace, seams=seams)
        self._require_sc = checked_switch("require_sc", require_sc)

    @classmethod
    def from_url(cls, url: str) -> AerospikeStore:
        """Return a store for `aerospike://[user:password@]host[:port][,host...]/namespace[?options]`; no I/O before its
        use.

        The page "Operations" lists the options. The store connects once per process, pickles as its URL (password
        included) and hides the password in `repr` and errors. Raises `InvalidRequest`.
        """
        target = parse(url)
        store = cls(None, target.namespace, require_sc=target.options.get("require_sc", False))
        store._link = shared_link(target)
        return store

    def __reduce__(self) -> Any:
        if self._link.target is None:
            raise InvalidRequest("a store around a client that you own cannot be pickled; use AerospikeStore.from_url")
        return AerospikeStore.from_url, (self._link.target.url,)

    def __repr__(self) -> str:
        return f"AerospikeStore({self._link.target or self.namespace})"

    @property
    def where(self) -> str:
        """The store as errors name it: its URL, without password and options; the namespace of a client of yours."""
        return str(self._link.target or f"namespace {self.namespace}")

    def close(self) -> None:
        """Close this process's connection, for every store of the URL; a client that you own stays open."""
        self._link.drop()

    def describe(self) -> StoreInfo:
        """Edition, consistency and limits of the namespace, as its servers say; asked again after a minute."""
        return self._link.describe()

    def mastered(self, keys: Sequence[Key]) -> dict[str, int]:
        """Return of how many of these records each node of the cluster is the master now. Raises `Unavailable`."""
        return info.mastered(self._client(), self.namespace, keys)

    def sets(self) -> list[str]:
        """Return the names of the sets that have records, sorted. Raises `Unavailable`."""
        return info.sets(self._client(), self.namespace)

    def _client(self) -> Any:
        client = self._link.client or self._link.connect()
        if self._require_sc:
            self._check_sc()
        return client

    def _check_sc(self) -> None:
        if not self.describe().strong_consistency:
            raise Misconfigured(
                f"namespace {self.namespace} is not strongly consistent, and require_sc was asked for: set "
                "strong-consistency true (an Enterprise feature), or do without the promise"
            )

    # ---- one record

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        where = (self.namespace, key.set, key.name)
        try:
            client, policy = self._client(), self._link.times.of_one(ONE_TRY)
            found = client.select(where, list(bins), policy) if bins else client.get(where, policy)
        except FAILURES as failure:
            fault = fault_of(failure)
            if fault.code == NOT_FOUND:
                return None
            raise error_of(fault, key, write=False) from None
        return _record(key, found)

    def _operate(self, update: Update) -> Values:
        if update.exists is _ANY and update.ttl == KEEP and self._ages():
            return update_or_create(update, self._operate)
        form = update.form
        answers: InOrder | ByName
        if form is None:
            (built, answers), policy = request_of(update.ops), policy_of(WRITE, update)
        else:
            ready = form.ready or ready_of(form)
            (built, policy), answers = ready.filled(update.params), ready.answers
        try:
            client = self._client()
            if self._link.is_durable():  # it may remove the last bin
                policy = {**policy, **DURABLE}
            call = client.operate if type(answers) is ByName else client.operate_ordered
            found = call((self.namespace, *update.key), built, None, self._link.times.of_one(policy))
        except FAILURES as failure:
            raise self._error(fault_of(failure), update) from None
        return answers.results(found[2]) if answers.any else ()

    def _delete(self, removal: Removal) -> bool:
        key = removal.key
        try:
            client, policy = self._client(), removing(self._deleting(WRITE), removal)
            client.remove((self.namespace, key.set, key.name), policy=self._link.times.of_one(policy))
        except FAILURES as failure:
            outcome = _removed(removal, fault_of(failure))
            if isinstance(outcome, bool):
                return outcome
            raise outcome from None
        return True

    def _deleting(self, base: Policy) -> Policy:
        """Return the policy of a deletion."""
        return {**base, **DURABLE} if self._link.is_durable() else base

    def _error(self, fault: ClientFault, update: Update) -> LatchworkError:
        writing = o.writes(update.ops)
        no_ttl = fault.code == FORBIDDEN and update.ttl not in (KEEP, NEVER) and self._refuses_ttl()
        bins = [op.bin for op in update.ops if isinstance(op.bin, str)]
        return error_of(fault, update.key, write=writing, no_ttl=no_ttl, bins=tuple(dict.fromkeys(bins)))

    def _refuses_ttl(self) -> bool:
        try:
            return self.describe().nsup_period == 0
        except LatchworkError:
            return False

    def _ages(self) -> bool:
        """Whether a record that is made without a time to live expires here; True if that is not known."""
        try:
            return self.describe().default_ttl != 0
        except Misconfigured:
            return True

    # ---- batches

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        wanted = [(self.namespace, key.set, key.name) for key in keys]
        try:
            client, policy = self._client(), self._link.times.of_many(ONE_TRY)
            rows = read_rows(client, wanted, list(bins) or None, policy)
        except FAILURES as failure:
            raise error_of(fault_of(failure), keys[0], write=False) from None
        return [_row_record(key, row) for key, row in zip(keys, rows, strict=True)]

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        if any(map(may_make, updates)) and self._ages():
            return update_or_create_many(updates, self._operate_many)
        batch = BatchRows()
        rows = [self._row(update, batch) for update in updates]
        durable = self._link.is_durable()
        sent = [
            (Write if row.writes else Read)(
                (self.namespace, *update.key),
                row.built,
                policy={**row.policy, **DURABLE} if durable and row.writes else row.policy,
            )
            for update, row in zip(updates, rows, strict=True)
            if type(row) is BatchRow
        ]
        answered = zip(sent, self._batch(sent), strict=True)
        outcomes: list[Row] = []
        for update, row in zip(updates, rows, strict=True):
            if not isinstance(row, BatchRow):
                outcomes.append(row)
                continue
            answer, fault = next(answered)
            outcomes.append(row.answers.results(answer.record[2]) if fault is None else self._error(fault, update))
        return outcomes

    def _row(self, update: Update, batch: BatchRows) -> BatchRow | LatchworkError:
        """Return the row as the client takes it, or what is wrong with it."""
        try:
            return batch.of(update)
        except LatchworkError as failure:
            return failure

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        # Rows with the same guard share its policy.
        base = self._deleting(ROW)
        made = {id(removal.when): removing(base, removal) for removal in {id(r.when): r for r in removals}.values()}
        rows = [Remove((self.namespace, *removal.key), policy=made[id(removal.when)]) for removal in removals]
        faults = self._batch(rows)
        return [
            True if fault is None else _removed(removal, fault) for removal, fault in zip(removals, faults, strict=True)
        ]

    def _batch(self, rows: list[Any]) -> list[ClientFault | None]:
        """Send the rows; for each None where the server has done it, else its error."""
        try:
            return write_rows(self._client(), rows, self._link.times.of_many(ONE_TRY)) if rows else []
        except FAILURES as failure:
            fault = fault_of(failure)
            return [ClientFault(fault.code, fault.in_doubt, fault.message, row=True)] * len(rows)

    # ---- queries

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        return self._found(set, f"set {set}, index on {bin}", predicates.equals(bin, equals))

    def _scan(self, set: str) -> list[Record]:
        return self._found(set, f"set {set}")

    def _found(self, set: str, where: str, *predicate: Any) -> list[Record]:
        try:
            query = self._client().query(self.namespace, set)
            if predicate:
                query.where(*predicate)
            with lenient() as strange:
                found = query.results(self._link.times.of_many(ONE_TRY))
        except FAILURES as failure:
            raise error_of(fault_of(failure), where, write=False) from None
        if strange.met:
            found = [row for row in found if _is_sound(set, row)]
        return [_record(Key(set, row[0][2]), row) for row in found if _is_named(set, row)]

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        info.ensure_index(self._client(), self.namespace, (set, bin, kind), self.seams)


def _record(key: Key, found: tuple[Any, Any, dict[str, Any]]) -> Record:
    meta = found[1]
    ttl = meta["ttl"]
    return Record(key, found[2], meta["gen"], NEVER if ttl == aerospike.TTL_NEVER_EXPIRE else ttl)


def _is_named(set: str, row: tuple[Any, Any, Any]) -> bool:
    """Whether the key of a record that a query has found is stored too; one without is passed over, with a warning."""
    if row[0][2] is None:
        log.warning("passed over by a query: a record of set %s without its key; write with the send-key policy", set)
    return row[0][2] is not None


def _is_sound(set: str, row: tuple[Any, Any, dict[str, Any]]) -> bool:
    """Whether a record that a query has found can be read; one that cannot is passed over, with a warning."""
    bin = strange_bin(row[2])
    if bin is not None:
        log.warning("passed over by a query: bin %r of %r in set %s has text that is not UTF-8", bin, row[0][2], set)
    return bin is None


def _row_record(key: Key, row: Any) -> Record | None:
    fault = read_fault(row)
    if fault is None:
        return _record(key, row.record)
    if fault.code == NOT_FOUND:
        return None
    raise error_of(fault, key, write=False)


def _removed(removal: Removal, fault: ClientFault) -> bool | LatchworkError:
    error = error_of(fault, removal.key, write=True)
    expired = removal.when is None and isinstance(error, Refused)
    return False if expired or isinstance(error, NotFound) else error
