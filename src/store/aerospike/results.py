"""The meaning of an Aerospike result code: whether the request was applied, and which error reports it.

The client's exceptions are read by `args` only: their class attributes are overwritten by the next exception of the
class. They are dispatched on the number, as several codes raise a bare base class, and never escape, as some of them do
not pickle. First of all, a write flagged in doubt is in doubt; then the table decides; a code that is not in it leaves
a write in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aerospike.exception import AerospikeError

from ...errors import (
    AlreadyExists,
    BinMismatch,
    InvalidRequest,
    LatchworkError,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unavailable,
    Unreadable,
)
from ...plain import one_line


class Verdict(Enum):
    """Whether a request that failed was applied, was not, or may have been."""

    NEVER_APPLIED = "never applied: may be sent again"
    DEFINITE = "a definite answer"
    IN_DOUBT = "a write that may have been applied, or may still be"
    CONDITIONAL = "transient, or a setting, depending on the server"
    PERMANENT = "not applied, and never will be"
    READS_ONLY = "a read that may be sent again"


TIMEOUT, FORBIDDEN, DEVICE_FULL, HOT_KEY, PARAMETER, NOT_SERVED = 9, 22, 8, 14, -2, 11
OVERLOADED = frozenset({DEVICE_FULL, HOT_KEY, 18, 83})
"""Codes by which the server, or one record, is asked for more than it can do."""
NO_CODE = -1000
"""The code for an exception of the client without one; it is not in the table, like any other unknown code."""
FAILURES = (AerospikeError, TypeError, ValueError, OverflowError, SystemError)
"""The exceptions of a call of the client."""
_AFTER_THE_REPLY = (UnicodeDecodeError, SystemError)
"""The builtin ones that come when the reply is taken; the others come before anything is sent."""
UNREADABLE = -1001
"""The code of an answer that the client could not decode. A write was applied."""
_UNDECODED = ("Unknown type for value", "deserialize error")
"""The beginning of the client's text for that; its code is -1, as for all of the client's own failures."""
NOT_FOUND, FILTERED_OUT, INDEX_EXISTS = 2, 27, 200

_CODES: dict[Verdict, tuple[int, ...]] = {
    Verdict.NEVER_APPLIED: (-6, -7, -8, -10, -11, -14, 7, 8, 11, 14, 18, 32, 66, 83, 120, 121, 151, 152),
    Verdict.DEFINITE: (2, 3, 5, 6, 17, 23, 24, 27, 28, 126, 127, -18, -19),
    Verdict.IN_DOUBT: (9, 1, 100, 122, -15, -16, -17),
    Verdict.CONDITIONAL: (FORBIDDEN,),
    Verdict.PERMANENT: (
        *(-1, -5, -9, -12, -2, -4, -20, 4, 10, 12, 13, 16, 19, 20, 21, 25, 26, 29),
        *(*range(51, 57), *range(60, 66), *range(70, 76), *range(80, 83)),
        *(123, 124, 125, 150, 160, *range(200, 207), 1301, 1302),
    ),
    Verdict.READS_ONLY: (-3, 50, 15, *range(210, 214)),
}
VERDICTS: dict[int, Verdict] = {code: verdict for verdict, codes in _CODES.items() for code in codes}
"""The outcome of a request by the server's or the client's code, if the client does not flag it in doubt."""

_DEFINITE: dict[int, type[LatchworkError]] = {5: AlreadyExists, 6: AlreadyExists}
_PERMANENT: dict[int, type[LatchworkError]] = {
    13: RecordTooBig,
    **dict.fromkeys((-1, -2, 4, 19, 21, 29, 160, 205, 1301, 1302), InvalidRequest),
}
"""Permanent codes that a different request would not meet; the others need a setting changed."""
_MISMATCHES = frozenset({12, 26})
"""A bin is not what the request needs."""
_SAID: dict[int, str] = {
    -1: "the client could not do it",
    -2: "the client does not take the request",
    -3: "the client found no more records",
    -4: "no such host",
    -5: "the query was broken off here",
    -6: "no connection to the server",
    -7: "every connection to the server that the client may have is in use",
    -8: "the client knows no node for it, so nothing was sent",
    -9: "the TLS connection failed",
    -10: "the connection to the server broke, or could not be made",
    -11: "the client's queue is full",
    -12: "the client has tried as often as it may",
    -14: "too many calls to this server have failed within a second, so the client sends it none for a while",
    -15: "no server answered",
    -16: "a part of the batch failed",
    -17: "the transaction failed",
    -18: "the transaction was committed before",
    -19: "the transaction was given up before",
    -20: "the client's metrics are set up twice",
    TIMEOUT: "no answer in time",
    NOT_SERVED: "the server does not serve it now",
    DEVICE_FULL: "the server takes no writes, as it is full",
}
"""The texts for the codes of the client, which are below zero: they say nothing about what a server did. And for some
of the server's, of which the client's own text says nothing, or `AEROSPIKE_OK`."""
_GONE = "check that the server runs and can be reached from here; the client looks for it again each second"
_REMEDIES: dict[int, str] = {
    **dict.fromkeys((-6, -8, -10, -14, -15), _GONE),
    -7: "raise the option connections of the store's URL, or make fewer calls at once",
    -9: "check the TLS options and the server's certificate",
    -4: "check the host names in the store's URL",
    -11: "make fewer calls at once",
    NOT_SERVED: "it starts, or the node that has the record is away: try again later, and check that all nodes run",
    DEVICE_FULL: "free memory or disk there, or add a node",
    HOT_KEY: "too many writers wait for this one record: spread them over more shards, or slow down",
    12: "a bin holds another type than the operation needs: the record is damaged, or was made for something else",
    13: "the record would be larger than the namespace's max-record-size: store less in it",
    16: "the server's edition or version does not support this",
    18: "the server's disks cannot keep up: slow down",
    20: "no such namespace on this server: check the last part of the store's URL",
    26: "the operation does not apply: an expression to be written has no value, as a bin that it needs is missing, "
    "or of another type",
    80: "give a user and a password in the store's URL",
    81: "the user may not do this: grant the role",
    83: "the user's quota is used up: slow down, or raise it",
    151: "send smaller batches, or raise batch-max-requests",
    201: "call ensure_index before the query",
    203: "the index is still being built: wait until it is ready",
}
_NO_TTL = (
    "the namespace refuses records with a time to live, as its nsup-period is 0: set nsup-period (say 120) in the "
    "server's namespace configuration"
)


@dataclass(frozen=True, slots=True)
class ClientFault:
    """A failure as the client reported it. `row`: it is one row of a batch, where a timeout says nothing."""

    code: int
    in_doubt: bool = False
    message: str = ""
    row: bool = False


NO_NODE = ClientFault(-8)


def fault_of(failure: BaseException) -> ClientFault:
    """Return the fault in an exception of the client; most builtin ones were raised before anything was sent."""
    args: tuple[Any, ...] = failure.args
    if not args or not isinstance(args[0], int):
        code = NO_CODE if isinstance(failure, (AerospikeError, *_AFTER_THE_REPLY)) else PARAMETER
        return ClientFault(code, message=f"{type(failure).__name__}: {failure}")
    message = one_line(str(args[1])) if len(args) > 1 else ""
    if args[0] == -1 and message.startswith(_UNDECODED):
        return ClientFault(UNREADABLE, message=f"a bin cannot be decoded by the client ({message})")
    return ClientFault(args[0], len(args) > 4 and bool(args[4]), message)


def verdict_of(fault: ClientFault, *, write: bool) -> Verdict:
    """Return the verdict about a failed request: it was applied, was not, or may have been."""
    if not write:
        verdict = VERDICTS.get(fault.code, Verdict.NEVER_APPLIED)
        return Verdict.NEVER_APPLIED if verdict in (Verdict.IN_DOUBT, Verdict.READS_ONLY) else verdict
    if fault.in_doubt:
        return Verdict.IN_DOUBT
    if fault.code == TIMEOUT:
        return Verdict.IN_DOUBT if fault.row else Verdict.NEVER_APPLIED
    verdict = VERDICTS.get(fault.code, Verdict.IN_DOUBT)
    return Verdict.IN_DOUBT if verdict is Verdict.READS_ONLY else verdict


def error_of(
    fault: ClientFault, what: Any, *, write: bool, no_ttl: bool = False, bins: Sequence[str] = ()
) -> LatchworkError:
    """Return the error for a failed request on `what`.

    no_ttl: whether it carried a time to live that the namespace refuses.
    bins: the bins that it named, as the server does not say which one it meant.
    """
    if fault.code == UNREADABLE:
        done = "; the update was made" if write else ""
        return Unreadable(f"{what}: {fault.message}{done}; correct the record, or delete it", key=what)
    return _error_by_verdict(fault, what, verdict_of(fault, write=write), no_ttl=no_ttl, bins=bins)


def _error_by_verdict(
    fault: ClientFault, what: Any, verdict: Verdict, *, no_ttl: bool, bins: Sequence[str]
) -> LatchworkError:
    said = f"{what}: {_what_happened(fault)}"
    remedy = _REMEDIES.get(fault.code)
    text = f"{said}; {remedy}" if remedy else said
    details = {"key": what, "server_code": fault.code}
    if verdict is Verdict.IN_DOUBT:
        details["alone"] = fault.code == -1
        return OutcomeUnknown(f"{said}; the write may have been applied: read the record first", **details)
    if verdict is Verdict.DEFINITE:
        return _definite(fault, what, said, details)
    if verdict is Verdict.CONDITIONAL and no_ttl:
        return Misconfigured(f"{said}; {_NO_TTL}", **details)
    if fault.code in _MISMATCHES:
        return BinMismatch(f"{text}; the request names {', '.join(bins)}" if bins else text, bins=bins, **details)
    if verdict is Verdict.PERMANENT:
        return _PERMANENT.get(fault.code, Misconfigured)(text, **details)
    error = Unavailable(text, overloaded=fault.code in OVERLOADED, **details)
    error.slow = fault.code == DEVICE_FULL
    return error


def _what_happened(fault: ClientFault) -> str:
    """Return what happened: a text of Latchwork's for the client's own codes, the server's text for its answers."""
    ours, theirs = _SAID.get(fault.code, "the client failed" if fault.code < 0 else ""), fault.message.strip()
    theirs = "" if theirs == "AEROSPIKE_OK" else theirs
    if ours:
        return f"{ours} ({theirs}, code {fault.code})" if theirs else f"{ours} (code {fault.code})"
    return f"{theirs or 'the server refused'} (code {fault.code})"


def _definite(fault: ClientFault, what: Any, said: str, details: dict[str, Any]) -> LatchworkError:
    if fault.code == NOT_FOUND:
        return NotFound(f"no record {what}: it was never created, was deleted, or has expired", **details)
    if fault.code == FILTERED_OUT:
        return Refused(f"the guard on {what} did not hold; nothing was written", **details)
    return _DEFINITE.get(fault.code, Refused)(said, **details)
