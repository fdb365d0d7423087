"""The data record of a message: its bins, its codec, and the reasons for which it failed or is parked
(docs/design.md section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from ... import lossless
from ...errors import InvalidRequest, RecordTooBig, Unreadable
from ...forks import called
from ...inputs import checked_choice
from ...plain import shown
from ...store.model.expr import Param
from ...store.model.form import Form
from ...store.model.ops import Op, Put
from ...store.model.values import taken
from ...store.port import MAX_TTL, Exists, Key, RecordStore, Update
from ...typed import converted, decoder
from ..undecodable import why

VERSION = 1
"""The version of the layout, bin `v`."""

BINS = (
    "data", "msgId", "attempts", "enqueuedAt", "notBefore", "reason", "lastError", "headers", "keepId", "batch",
    "interrupts", "interrupted", "cancel", "unique",
)  # fmt: skip
"""The bins that a reader of a message needs; `delivery, fireTS, modified_at, v` serve the protocol and raw readers."""
CONTENT = (
    "data", "attempts", "enqueuedAt", "notBefore", "reason", "lastError", "headers", "fireTS", "batch", "interrupts",
    "interrupted", "cancel", "progress", "unique", "replaced",
)  # fmt: skip
"""The bins that are deleted when only the id of a message stays, so that a late retry of its publisher finds it done
(P6).
"""
MAX_ERROR = 1_000
"""Bytes of an error that are kept with the message, so that there is room for it beside any payload."""
MAX_ID = 256
"""Characters in a message id."""
KEPT_ID = 2 * 86_400
"""Seconds that the id of a message is kept where its own `keepId` is damaged: as long as a ledger is by default."""
DAMAGED = "latchwork-damaged"
"""The header that names the bins of a message that were damaged and are read as if they were not there."""
PREVIOUS_ATTEMPTS = "latchwork-attempts"
"""The header in which a redriven message keeps how often it had been handed out before."""

MAYBE_TOO_BIG = 200_000
"""Characters of payload and headers below which no record of any store is too small."""
AROUND = 2_048
"""Bytes of a record beside payload and headers: the id, the numbers, what a failure says."""

MAX_TIME = 253_402_300_799_999
"""Milliseconds since the epoch to the end of the year 9999, where the dates of Python end."""

UNIQUE = "[0-9a-f]{20}"
"""The form of an id that this library makes."""

_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class Reason(str, Enum):
    """The reasons for which a message failed, was interrupted, or is parked: a closed set."""

    REJECTED = "rejected"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    UNREADABLE = "unreadable"
    SATURATED = "saturated"
    SWEPT = "swept"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"


def reason_of(reason: str) -> str:
    """Return the reason, once it is one of the closed set. Raises `InvalidRequest`."""
    return str.__str__(checked_choice("reason", reason, [one.value for one in Reason]))


class Envelope(Struct, frozen=True, rename="camel", gc=False):  # as of `Update`
    """A message as it is stored, each field under the name of its bin. The repr shows no content.

    data: text or bytes; another program's, or a damaged one, may be anything.
    keep_id: seconds for which a delete leaves the message id behind, 0 = none (docs/protocols P6).
    batch: its place in a batch (P18).
    unique: the key of which it is the one message (P30).
    interrupts: how often the work on it was interrupted, as by a deploy.
    interrupted: the delivery whose work was interrupted, until another one takes the message, when it was read; a
        message to be written has none here.
    groups: the groups that wait for it, when it was read (P17); a message to be written has none here.
    cancel: who has asked the consumer that had it to stop (P26), when it was read; never written with a message.
    known: of a message to be written, whether the groups of the queue have had it (P17); None = they have if it moves,
        or was handed out before. Never stored.

    Times in milliseconds since the epoch; 0 = none.
    """

    data: Any
    msg_id: str = ""
    attempts: _Count = 0
    enqueued_at: _Milliseconds = 0
    not_before: _Milliseconds = 0
    reason: str | None = None
    last_error: str | None = None
    headers: Mapping[str, str] | None = None
    keep_id: Annotated[int, Meta(ge=0, le=MAX_TTL)] = 0
    batch: str | None = None
    interrupts: _Count = 0
    interrupted: Any = None
    groups: Any = None
    cancel: Annotated[str, Meta(pattern=f"^{UNIQUE}\\Z")] | None = None
    unique: str | None = None
    known: Any = None

    def __repr__(self) -> str:
        return f"Envelope({self.msg_id!r}, attempts={self.attempts}, reason={self.reason!r})"

    @property
    def bare(self) -> bool:
        """Whether it has nothing but what every message has."""
        return not (
            self.not_before or self.reason or self.last_error or self.headers or self.keep_id or self.batch
            or self.interrupts or self.unique
        )  # fmt: skip

    def ops(self, now_ms: int) -> tuple[Op, ...]:
        """Return the operations that write it into a new record. Bins that would be empty are left out."""
        written = (
            Put("data", self.data),
            Put("msgId", self.msg_id),
            _put("attempts", self.attempts),
            _put("enqueuedAt", self.enqueued_at),
            _put("modified_at", now_ms),
            _PUT_VERSION,
        )
        if self.bare:
            return written
        optional = (
            self.not_before, self.reason, self.last_error, self.headers, self.keep_id, self.batch, self.interrupts,
            self.unique,
        )  # fmt: skip
        return written + tuple(Put(bin, value) for bin, value in zip(_OPTIONAL, optional, strict=True) if value)


@lru_cache(maxsize=256)
def _put(bin: str, value: int) -> Put:
    """Return a cached operation for a value, so that the rows of a batch share it and it is compiled once."""
    return Put(bin, value)


_PUT_VERSION = Put("v", VERSION)
_OPTIONAL = ("notBefore", "reason", "lastError", "headers", "keepId", "batch", "interrupts", "unique")


@lru_cache(maxsize=256)
def _writing_bare(ttl: int) -> Form:
    written = [Put(bin, Param(bin)) for bin in ("data", "msgId", "attempts", "enqueuedAt", "modified_at")]
    return Form(*written, _PUT_VERSION, exists=Exists.CREATE, ttl=ttl)


def bare_update(key: Key, envelope: Envelope, now_ms: int, ttl: int) -> Update:
    """Return the update that writes a bare message into a new record, as `Envelope.ops` does."""
    return _writing_bare(ttl).fill(
        key, data=envelope.data, msgId=envelope.msg_id, attempts=envelope.attempts, enqueuedAt=envelope.enqueued_at,
        modified_at=now_ms,
    )  # fmt: skip


def from_bins(bins: Mapping[str, Any]) -> Envelope | None:
    """Return the message in these bins; None for a record without a payload: a tombstone, or an id that was kept.

    A bin that is damaged, or that another program wrote in another form, does not hide the payload: the message is read
    as if the bin were missing (but an unreadable `keepId` keeps the id for two days, and an unreadable `attempts`
    counts as one), and its header `latchwork-damaged` names the bin from then on. Never raises.
    """
    if bins.get("data") is None:
        return None
    try:
        envelope = converted(bins, Envelope)
    except (msgspec.ValidationError, UnicodeError):
        return _mended(bins)
    return envelope if all(map(_fits, _texts(envelope))) else _mended(bins)


def from_all(records: Sequence[Mapping[str, Any]]) -> list[Envelope | None]:
    """Return what `from_bins` returns for each of them, in one pass if nothing is damaged."""
    there = [bins for bins in records if bins.get("data") is not None]
    try:
        found = converted(there, list[Envelope])
    except (msgspec.ValidationError, UnicodeError):
        return [from_bins(bins) for bins in records]
    texts = [envelope.msg_id for envelope in found]
    for envelope in found:
        if envelope.headers or envelope.reason or envelope.last_error or envelope.batch or envelope.unique:
            texts += _texts(envelope)
    joined = "".join(texts)
    if "\0" in joined or not (joined.isascii() or _fits(joined)):
        return [from_bins(bins) for bins in records]
    if len(found) == len(records):
        return list(found)
    rest = iter(found)
    return [None if bins.get("data") is None else next(rest) for bins in records]


def _texts(envelope: Envelope) -> Iterable[str]:
    if envelope.bare:
        return (envelope.msg_id,)
    headers = envelope.headers or {}
    texts = tuple(
        text or "" for text in (envelope.msg_id, envelope.reason, envelope.last_error, envelope.batch, envelope.unique)
    )
    return (*texts, *headers, *headers.values())


def _fits(text: str) -> bool:
    """Whether every store takes the text as it is."""
    return bool(storable(text) == text)


def _mended(bins: Mapping[str, Any]) -> Envelope:
    """Return the message, with a default for every bin that is not as it should be; its headers say which these are."""
    values: dict[str, Any] = {"data": bins["data"]}
    damaged: list[str] = []
    for bin in BINS[1:]:
        value = bins.get(bin)
        if value is None:
            continue
        mended = _MENDS.get(bin, lambda value: value)(value)
        try:
            converted({"data": "", bin: mended}, Envelope)
        except (msgspec.ValidationError, UnicodeError):
            damaged.append(bin)
            mended = _INSTEAD.get(bin)
        if mended is not None:
            values[bin] = mended
    if damaged:
        values["headers"] = {**values.get("headers", {}), DAMAGED: ", ".join(damaged)}
    return converted(values, Envelope)


def kept_for(keep_id: Any) -> int:
    """Return seconds for which the id of a message stays when it is deleted, by its bin `keepId`; 0 = not at all."""
    if keep_id is None:
        return 0
    return keep_id if type(keep_id) is int and 0 <= keep_id <= MAX_TTL else KEPT_ID


def storable(text: Any) -> Any:
    """Return the text, with a replacement for what no store takes: the text of any exception, or one that an earlier
    version kept.
    """
    if not isinstance(text, str) or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def kept_error(error: str) -> str:
    """Return the beginning of an error that is kept with a message; it ends with a whole character."""
    return str(storable(error[:MAX_ERROR])).encode()[:MAX_ERROR].decode(errors="ignore")


def storable_headers(headers: Any) -> Any:
    """Make headers storable: values that are no text become text. A value that is no map is returned unchanged."""
    if not isinstance(headers, Mapping):
        return headers
    if all(isinstance(text, str) and _fits(text) for one in headers.items() for text in one):
        return headers
    return {storable(str(name)): storable(str(value)) for name, value in headers.items()}


_MENDS: dict[str, Callable[[Any], Any]] = {
    "msgId": storable, "reason": storable, "lastError": storable, "headers": storable_headers,
}  # fmt: skip
_INSTEAD: dict[str, Any] = {"attempts": 1, "keepId": KEPT_ID}
"""The harmless values that replace the values of damaged bins."""


def tombstone(now_ms: int) -> tuple[Op, ...]:
    """Return the operations that write a tombstone: a record without payload and without message id."""
    return (Put("modified_at", now_ms), _PUT_VERSION)


def check_fits(store: RecordStore, queue: str, data: Sequence[str | bytes], headers: Mapping[str, str] | None) -> None:
    """Raise `RecordTooBig` if one of these messages, all with these headers, is such that no record of the store can
    hold it. At most one call, once a process.
    """
    texts = [part for header in headers.items() for part in header] if headers else []
    largest = max(map(len, data), default=0)
    if largest + sum(map(len, texts)) <= MAYBE_TOO_BIG:
        return
    beside = sum(len(text.encode()) for text in texts)
    size = beside + max(len(one.encode() if isinstance(one, str) else one) for one in data)
    limit = store.describe().record_size_limit - AROUND
    if size > limit:
        raise RecordTooBig(
            f"a message of {size} bytes, {beside} of them headers, and records of the queue {shown(queue)} take "
            f"{limit}: publish a reference",
            size=size,
            limit=limit,
        )


_BYTES = (bytes, bytearray, memoryview)


class Codec:
    """The encoding of payloads in the bin `data`: JSON text, bytes as they are, or JSON text read as a msgspec type."""

    def __init__(self, codec: Any = "json") -> None:
        self.kind = codec
        self.name = "bytes" if isinstance(codec, str) and codec == "bytes" else "json"
        self._decoder = None if self.name == "bytes" else _decoder(codec)
        self._is_typed = not isinstance(codec, str)

    def encode(self, payload: Any) -> str | bytes:
        """Return the payload as it is stored. Raises `InvalidRequest` where it cannot be."""
        if self._decoder is None:
            if isinstance(payload, _BYTES):
                return bytes(payload)
            raise InvalidRequest(f"a {type(payload).__name__} is not bytes: this queue's codec is 'bytes'")
        try:
            encoded = lossless.encode(payload)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as failure:
            raise InvalidRequest(f"the payload is not JSON: {failure}; use a queue with codec='bytes'") from failure
        lossless.check(payload, encoded)
        if self._is_typed and not isinstance(payload, msgspec.Raw):
            try:  # consumers that could not read it would each fail with it
                self.decode(encoded)
            except Unreadable as failure:
                raise InvalidRequest(f"{failure}: this queue takes {shown(self.kind)}") from None
        return encoded.decode()

    def decode(self, data: str | bytes) -> Any:
        """Return the payload. Raises `Unreadable`."""
        if self._decoder is None:
            if isinstance(data, bytes):
                return data
            raise Unreadable(f"the payload is {type(data).__name__}, not bytes")
        try:
            return called(self._decoder, data)  # which may construct objects of the user's
        except Exception as failure:  # noqa: BLE001 - the type is the user's; one message must not block the others
            raise Unreadable(f"the payload cannot be decoded: {why(failure)}") from None


def _decoder(codec: Any) -> Callable[[str | bytes], Any]:
    try:
        return _new_decoder(codec)
    except (TypeError, ValueError, RecursionError) as failure:  # also of what cannot be the key of a cache
        kind = type(failure).__name__
        raise InvalidRequest(f"codec {shown(codec)} is not a type that msgspec reads from JSON ({kind})") from None


@lru_cache(maxsize=256)
def _new_decoder(codec: Any) -> Callable[[str | bytes], Any]:
    return decoder(Any if codec == "json" else codec)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as people see it.

    payload: None where `unreadable`; then `raw` is what is stored.
    attempts: how often it was handed out.
    enqueued_at: UTC.
    not_before: UTC, None = due.
    reason, last_error: why it failed, was interrupted or was parked last.
    published_as: the id with which it was published, which the logs have: the `message_id`, but for a message that
        waits to be tried again.

    The repr leaves out what may be confidential: payload, headers and errors.
    """

    payload: Any = field(repr=False)
    message_id: str
    headers: Mapping[str, str] = field(repr=False)
    attempts: int
    enqueued_at: datetime
    shard: int
    pointer: int
    reason: str | None = None
    last_error: str | None = field(default=None, repr=False)
    not_before: datetime | None = None
    unreadable: bool = False
    raw: str | bytes = field(default="", repr=False)
    published_as: str = ""


def message_of(envelope: Envelope, codec: Codec, shard: int, pointer: int) -> Message:
    """Return the message in the envelope."""
    payload, unreadable = None, False
    try:
        payload = codec.decode(envelope.data)
    except Unreadable:
        unreadable = True
    not_before = date(envelope.not_before) if envelope.not_before else None
    return Message(
        payload, envelope.msg_id, envelope.headers or {}, envelope.attempts, date(envelope.enqueued_at), shard, pointer,
        envelope.reason, envelope.last_error, not_before, unreadable, envelope.data, published_as=envelope.msg_id,
    )  # fmt: skip


def date(milliseconds: int) -> datetime:
    """Return the time, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def checked_headers(headers: Mapping[Any, Any] | None) -> dict[str, str] | None:
    """Return the headers, once they are text to text that a store takes. Raises `InvalidRequest`."""
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers is a {type(headers).__name__}; give a dict of text to text, or None")
    if not headers:
        return None
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kinds = f"a {type(name).__name__} and a {type(value).__name__}"
            raise InvalidRequest(f"a header is {kinds}; names and values must be text")
        taken(name)
        taken(value)
    return dict(headers)


def not_begun(envelope: Envelope) -> Envelope:
    """Return the message without its latest attempt, which was not begun."""
    return replace(envelope, attempts=max(0, envelope.attempts - 1))


def interrupted(envelope: Envelope) -> Envelope:
    """Return the message without its latest attempt, which was interrupted, as by a deploy; an error is of an attempt
    before it, and goes.
    """
    return replace(
        not_begun(envelope), reason=Reason.INTERRUPTED.value, last_error=None, interrupts=envelope.interrupts + 1
    )


def as_new(envelope: Envelope) -> Envelope:
    """Return the message with no attempts and nothing to wait for; how often it had been handed out is in its
    header.
    """
    stored = (envelope.headers or {}).get(PREVIOUS_ATTEMPTS, "")
    # Any publisher may have given such a header.
    before = int(stored) if stored.isascii() and stored.isdigit() and len(stored) < 10 else 0
    headers = {**(envelope.headers or {}), PREVIOUS_ATTEMPTS: str(before + envelope.attempts)}
    return replace(envelope, attempts=0, interrupts=0, not_before=0, headers=headers)


def checked_id(message_id: str, most: int = MAX_ID) -> str:
    """Return the message id, once it is text of 1 to `most` characters that a store takes. Raises `InvalidRequest`."""
    if not isinstance(message_id, str) or not 1 <= len(message_id) <= most:
        raise InvalidRequest(f"message id {shown(message_id)}: it must be text of 1 to {most} characters")
    taken(message_id)
    return message_id
