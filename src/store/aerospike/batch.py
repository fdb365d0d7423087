"""Batches as the Aerospike client answers them: which rows were answered, and how the others failed.

The client raises nothing if a batch fails. It says so only in the batch's own result; and if it knows no node to send
the batch to, it leaves every row as it was made, with the result 0. So a row's result 0 is an answer only if something
shows that the row was sent. docs/aerospike-client.md lists the client's answer to each kind of failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aerospike_helpers.batch.records import BatchRecords, Read, Remove

from ...errors import LatchworkError, Unreadable
from ..port import Key
from .results import NO_NODE, UNREADABLE, ClientFault, error_of
from .text import lenient, strange_bin

CLUSTER_EMPTY = 1
"""The own result of a batch for which the client knows no node. No server answers a batch with this code."""
UNANSWERED = -15
"""The result that the client gives to every row before it sends the first; a row that is not answered keeps it."""
ROWS_FAILED = -16
"""The own result of a batch whose nodes have all answered, some of its rows with a failure."""
_ALL_SENT = (0, ROWS_FAILED)
_TOO_DEEP = "a bin cannot be decoded by the client: it has more than 64 levels, or is damaged"
CUT_SHORT = -1
"""The result of a batch with an answer that the client could not decode, such as more than 64 levels. In that row bins
are missing, though its result is 0; the rows behind it keep `UNANSWERED`. It does not say which row that is.
"""


def write_rows(client: Any, rows: list[Any], policy: dict[str, Any]) -> list[ClientFault | None]:
    """Send the rows; for each None where the server has done it, else its error."""
    batch = BatchRecords(rows)
    with lenient() as strange:
        client.batch_write(batch, policy)
    if batch.result == CUT_SHORT:
        return _undecoded(client, rows, policy)
    # One row with another result than 0 shows that the client came to the point of sending.
    sent = batch.result in _ALL_SENT or any(row.result for row in rows)
    faults = [_row_fault(row, batch.result, sent=sent) for row in rows]
    return [fault or _strange(row) for fault, row in zip(faults, rows, strict=True)] if strange.met else faults


def read_rows(client: Any, wanted: Sequence[tuple[str, str, Any]], bins: list[str] | None, policy: Any) -> list[Any]:
    """Return the rows of a batch of reads, one for each key. Raises `Unavailable`, or `Unreadable` naming the key."""
    with lenient() as strange:
        batch = client.batch_read(wanted, bins, policy)
    rows: list[Any] = batch.batch_records
    if batch.result == CUT_SHORT and (half := len(wanted) // 2):
        # It does not say which row that is; each half by itself comes to it in few calls.
        return [row for some in (wanted[:half], wanted[half:]) for row in read_rows(client, some, bins, policy)]
    if batch.result == CUT_SHORT and len(rows) == 1 and _is_undecoded(rows[0]):
        raise error_of(ClientFault(UNREADABLE, message=_TOO_DEEP), Key(*wanted[0][1:]), write=False)
    if len(rows) < len(wanted):
        raise _missing(batch.result, Key(*wanted[len(rows)][1:]))
    for key, row in zip(wanted, rows, strict=True) if strange.met else ():
        if (fault := _strange(row)) is not None:
            raise error_of(fault, Key(*key[1:]), write=False)
    return rows


def read_fault(row: Any) -> ClientFault | None:
    """Return the error of a row that was read; None where it has a record."""
    if not row.result:
        return None if _generation(row) else _unanswered(UNANSWERED)
    return _fault(row)


def _row_fault(row: Any, batch: int, *, sent: bool) -> ClientFault | None:
    if not row.result:
        # Every record has a generation, from 1 on. The answer to a removal has none, nor has that to a write which has
        # removed the last bin.
        if _generation(row) or (sent and (isinstance(row, Remove) or _removes_bins(row))):
            return None
        return NO_NODE if batch == CLUSTER_EMPTY and not sent else _unanswered(batch or UNANSWERED)
    if row.result == UNANSWERED and not row.in_doubt and batch not in _ALL_SENT:
        # The client flags each write of a request that left it whole, unless the server refused the whole request.
        return ClientFault(batch, message=row.message or "")
    return _fault(row)


def _removes_bins(row: Any) -> bool:
    """Whether it writes None into a bin, which removes it."""
    return any("val" in op and op["val"] is None for op in getattr(row, "ops", ()))


def _undecoded(client: Any, rows: list[Any], policy: dict[str, Any]) -> list[ClientFault | None]:
    """Return the errors of the rows of a batch that could not be decoded. Any of them may be the cause: reads are sent
    again, each alone, and writes are in doubt; their error says that they are to be sent alone.
    """
    if len(rows) == 1 and _is_undecoded(rows[0]):
        return [ClientFault(UNREADABLE, message=_TOO_DEEP)]
    doubt = ClientFault(CUT_SHORT, in_doubt=True, message="of this batch, one answer could not be decoded", row=True)
    return [
        write_rows(client, [row], policy)[0] if isinstance(row, Read) and len(rows) > 1
        else doubt if row.result in (0, UNANSWERED) else _fault(row)
        for row in rows
    ]  # fmt: skip


def _is_undecoded(row: Any) -> bool:
    """Whether the answer to the only row of such a batch came, and could not be decoded."""
    return not row.result or (row.message or "").startswith("deserialize error")


def _strange(row: Any) -> ClientFault | None:
    """Return the fault of an answer with text that is not UTF-8."""
    bin = strange_bin(row.record[2]) if row.record else None
    return None if bin is None else ClientFault(UNREADABLE, message=f"the bin {bin!r} has text that is not UTF-8")


def _fault(row: Any) -> ClientFault:
    return ClientFault(row.result, bool(row.in_doubt), row.message or "", row=True)


def _unanswered(code: int) -> ClientFault:
    return ClientFault(code, in_doubt=True, message="the row was not answered", row=True)


def _generation(row: Any) -> int:
    generation: int = row.record[1]["gen"] if row.record else 0
    return generation


def _missing(batch: int, key: Key) -> LatchworkError:
    if not batch:
        return Unreadable(f"{key}: what is stored there cannot be decoded by the client")
    return error_of(NO_NODE if batch == CLUSTER_EMPTY else ClientFault(batch), key, write=False)
