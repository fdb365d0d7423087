"""The signature of a task: what its payload looks like, and what a payload of other parameters lacks.

The payload is a JSON object of the arguments that were given, by name. So the default of a parameter is that of the
program that handles the message, and a program in any language can publish one.

The signatures that the workers know now are in set `{client}_meta_set`, key `{queue}_TASK`, one map bin `signatures`: a
hash of a signature -> `[server's ms, its text]` (docs/protocols/tasks.md). All workers of one program share an entry.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, get_type_hints

import msgspec

from .... import lossless
from ....errors import Corrupt, InvalidRequest, NotFound, RecordTooBig, Unreadable
from ....logs import Log
from ....plain import shown
from ....store import Key, MapPut, Put, Read, Update
from ....store.model.expr import SERVER_NOW, ListOf, Param
from ....store.model.form import Form
from ....store.model.ops import Compute
from ....store.port import Exists
from ....typed import decoder, schema
from ...undecodable import why
from ..delivery import Delivery
from ..record import lifetime
from ..workers import REPORT, SILENT, HasWorkers

log = Log(__name__)

MAX_SIGNATURE = 16_384
"""Bytes of a signature as it is stored."""
DEEPEST = 8
"""Levels of a type that are compared; what is below counts as equal."""
_WITHIN = re.compile(r"[{?]")
"""In the path of a part within a map, or within one of several types. Earlier versions do not know these parts."""
_PARTS = frozenset({"properties", "items", "additionalProperties"})
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Part:
    """A parameter, or a field within one. type: in the words of JSON."""

    type: str
    required: bool


class Signature:
    """The parameters of a function, which are the fields of its payload.

    delivered: whether its first parameter is the `Delivery`, which is not published.

    Raises `InvalidRequest` for a function whose parameters cannot be fields.
    """

    def __init__(self, function: Callable[..., Any], deliveries: tuple[type, ...] = (Delivery,)) -> None:
        plain = _defined(function)
        self.name = getattr(function, "__name__", None) or plain.__qualname__
        try:
            hints = get_type_hints(plain, include_extras=True)
        except NameError as failure:
            raise InvalidRequest(
                f"{self.name} has a type that is not known where it is defined ({failure}): import it at run time too, "
                "not only for the type checker"
            ) from None
        except Exception as failure:  # noqa: BLE001 - a type is code of the user's
            raise InvalidRequest(
                f"{self.name} has a type that cannot be read ({type(failure).__name__}: {failure}): correct it"
            ) from None
        try:
            written = inspect.signature(function).parameters.values()
        except ValueError as failure:  # of `int` and others that are not written in Python
            raise InvalidRequest(f"{self.name} does not tell its parameters ({failure}): decorate a function") from None
        own = [one.replace(annotation=hints.get(one.name, one.empty)) for one in written]
        self.delivered = bool(own) and hints.get(own[0].name) in deliveries
        parameters = own[1:] if self.delivered else own
        for one in parameters:
            if one.kind not in _NAMED:
                raise InvalidRequest(
                    f"{self.name} has the parameter {one}: a message names each argument, so give each parameter a "
                    "name that may be used in a call"
                )
        self._signature, self._returns = inspect.Signature(parameters), hints.get("return", Any)
        required = {one.name for one in parameters if one.default is one.empty}
        fields = [(one.name, hints.get(one.name, Any)) for one in parameters]
        try:
            self._type = msgspec.defstruct(
                self.name,
                [(*field, *(() if field[0] in required else (msgspec.UNSET,))) for field in fields],
                kw_only=True,
                forbid_unknown_fields=True,
            )
            self._decode = decoder(self._type, dec_hook=_from_json)
            self.parts: dict[str, Part] = {}
            for name, kind in dict(fields).items():
                _add(self.parts, (name, name in required), schema(kind, _schema_of), {})
        except (TypeError, ValueError, RecursionError, NameError) as failure:
            raise InvalidRequest(f"{self.name} has a parameter that is not read from JSON: {failure}") from None

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload of a call with these arguments. Raises `InvalidRequest` for arguments that the function
        does not take, or that a worker could not read.
        """
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as failure:
            raise InvalidRequest(f"{self.name}{self._signature}: {failure}") from None
        try:
            encoded = msgspec.json.encode(given, enc_hook=_to_json)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as failure:
            raise InvalidRequest(f"{self.name}: an argument is not JSON: {failure}") from None
        lossless.check(given, encoded)
        try:
            self._decode(encoded)
        except Exception as failure:  # noqa: BLE001 - the types are the user's
            raise InvalidRequest(f"{self.name}{self._signature}: {why(failure)}") from None
        payload: dict[str, Any] = json.loads(encoded)
        return payload

    def arguments(self, payload: Any) -> dict[str, Any]:
        """Return the arguments that are in a payload. Raises `InvalidRequest` for a payload that does not fit."""
        try:
            found = self._decode(lossless.encode(payload))
        except Exception as failure:  # noqa: BLE001 - as above
            raise InvalidRequest(f"the message does not fit {self.name}{self._signature}: {why(failure)}") from None
        values = {name: getattr(found, name) for name in self._signature.parameters}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def returned(self, result: Any) -> Any:
        """Return a result, read as what the function is said to return. Raises `Unreadable` where it is not that."""
        try:
            return decoder(self._returns, dec_hook=_from_json)(lossless.encode(result))
        except Exception as failure:  # noqa: BLE001 - as above
            raise Unreadable(f"the result is not what {self.name} returns: {why(failure)}") from None

    def stored(self, *, upcasts: bool) -> str:
        """Return the signature as text, which `StoredSignature.read` reads. Raises `InvalidRequest` if it is too long.

        upcasts: whether its workers read payloads of other signatures too.
        """
        written = {path: [part.type, part.required] for path, part in self.parts.items()}
        within = {path: part for path, part in written.items() if _WITHIN.search(path)}
        parts = {path: part for path, part in written.items() if path not in within}
        stored = {"name": self.name, "parts": parts, "upcasts": upcasts}
        text, longer = (json.dumps(one, sort_keys=True) for one in (stored, {**stored, "within": within}))
        if within and len(longer) <= MAX_SIGNATURE:
            return longer
        if len(text) > MAX_SIGNATURE:
            raise InvalidRequest(
                f"the types of {self.name} have {len(text)} bytes, and {MAX_SIGNATURE} are stored: give it smaller "
                "types"
            )
        return text


def _defined(function: Any) -> Any:
    """Return what was written with `def`, of a function with some arguments given, or of an object that is called."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


@dataclass(frozen=True)
class StoredSignature:
    """The signature of a program that works on the queue now."""

    name: str
    parts: Mapping[str, Part]
    upcasts: bool

    @classmethod
    def read(cls, text: Any) -> StoredSignature | None:
        """Return the signature in this text; None if that is of another form."""
        try:
            found = json.loads(text)
            written = {**found["parts"], **found.get("within", {})}
            parts = {path: Part(str(kind), bool(required)) for path, (kind, required) in written.items()}
            return cls(str(found["name"]), parts, bool(found["upcasts"]))
        except (TypeError, ValueError, KeyError, AttributeError):
            return None

    def difference(self, given: set[str], ours: Mapping[str, Part]) -> str | None:
        """Return why this program would not read a payload with these arguments, whose types are `ours`; None if it
        reads it.

        A part is compared if both know the part that it is in: one that is left out lacks nothing.
        """
        if self.upcasts:
            return None
        for path, part in ours.items():
            theirs, above = self.parts.get(path), _above(path)
            if _top(path) in given and theirs is None and (not above or (part.required and above in self.parts)):
                return f"it does not know {path} ({part.type})"
            if _top(path) in given and theirs is not None and theirs.type != part.type:
                return f"{path} is {theirs.type} there, and {part.type} here"
        for path, part in self.parts.items():
            if path == _top(path) and part.required and path not in given:
                return f"it needs {path} ({part.type}), which is not given"
        for path, part in self.parts.items():
            if _top(path) in given and part.required and path not in ours and _above(path) in ours:
                return f"it needs {path} ({part.type}), which this program does not know"
        return None


def _top(path: str) -> str:
    return re.split(r"[.\[{?]", path, maxsplit=1)[0]


def _above(path: str) -> str:
    """Return the path of the part that a part is in; empty for a parameter."""
    for last in ("[]", "{}", "?"):
        if path.endswith(last):
            return path.removesuffix(last)
    return path.rpartition(".")[0]


# ---- the types of others


def _to_json(value: Any) -> Any:
    """Return what is written for a value that msgspec does not know: a model of pydantic, or a number of numpy."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return lossless.plain_number(value)


def _from_json(kind: type, value: Any) -> Any:
    """Return the object of a type that msgspec does not know."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")


def _schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a type that msgspec does not know."""
    if hasattr(kind, "model_json_schema"):
        described: dict[str, Any] = kind.model_json_schema()
        return described
    raise NotImplementedError(f"{shown(kind)} is none that msgspec or pydantic knows")


def _add(found: dict[str, Part], at: tuple[str, bool], described: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Add the part at this path, which is required or not, and those within it."""
    path, required = at
    described, known = _resolved(described, known)
    found[path] = Part(_type_of(described, known), required)
    if len(re.findall(r"[.\[{?]", path)) >= DEEPEST:
        return
    needs = described.get("required", ())
    for name, inner in described.get("properties", {}).items():
        _add(found, (f"{path}.{name}", name in needs), inner, known)
    for kind, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(described.get(kind), dict):
            _add(found, (f"{path}{mark}", False), described[kind], known)
    # Of several types the only one that has parts, as of `Address | None`: of two it is not known which is meant.
    types = [_resolved(one, known) for one in (*described.get("anyOf", ()), *described.get("oneOf", ()))]
    if len(composed := [one for one in types if _PARTS & one[0].keys()]) == 1:
        _add(found, (f"{path}?", False), *composed[0])


def _resolved(described: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what the schema refers to, and the schemas that are known there by their names."""
    known = {**known, **described.get("$defs", {})}
    while "$ref" in described:
        described = known.get(str(described["$ref"]).rpartition("/")[2], {})
        known = {**known, **described.get("$defs", {})}
    return described, known


def _type_of(described: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    for many in ("anyOf", "oneOf"):
        if many in described:
            return " | ".join(sorted(_type_of(*_resolved(one, known)) for one in described[many]))
    if "enum" in described:
        return f"one of {json.dumps(described['enum'])}"
    kind = described.get("type", "anything")
    return f"{kind} ({described['format']})" if "format" in described else str(kind)


# ---- the signatures that the workers know now

SIGNATURES = "signatures"
FRESH = REPORT
"""Seconds for which a publisher relies on what it has read."""

_READ = (Read(SIGNATURES), Compute(SERVER_NOW))


def _key(queue: HasWorkers) -> Key:
    return Key(queue.pointers.meta_set, f"{queue.config.name}_TASK")


def report(queue: HasWorkers, text: str) -> None:
    """Say that a worker with this signature works now. One call; harmless when repeated. Raises the store's errors.

    A record that is damaged, or full of the signatures of former programs, begins again, in a second call: the workers
    of other programs report again within `REPORT` seconds.
    """
    put = MapPut(SIGNATURES, Param("hash", str), ListOf((SERVER_NOW, Param("text", str))))
    form = Form(put, exists=Exists.ANY, ttl=lifetime(queue.config))
    name = blake2b(text.encode(), digest_size=8).hexdigest()
    update = form.fill(_key(queue), hash=name, text=text)
    (row,) = rows = queue.store.repeat_many([update])
    if isinstance(row, Corrupt | RecordTooBig):
        log.warning("%s is begun again: %s", update.key, row)
        queue.store.repeat_many([Update(update.key, (Put(SIGNATURES, None),))]).raise_unless(NotFound)
        rows = queue.store.repeat_many([update])
    rows.raise_unless()


def signatures_of(queue: HasWorkers) -> list[StoredSignature]:
    """Return the signatures of the workers that have reported within `SILENT` seconds. One call.

    What cannot be read is left out. Raises the store's errors.
    """
    (row,) = queue.store.repeat_many([Update(_key(queue), _READ)]).raise_unless(NotFound).values((None, 0))
    found, now = row
    entries = list(found.values()) if isinstance(found, dict) else []
    texts = [entry[1] for entry in entries if _is_fresh(entry, now)]
    return [one for one in map(StoredSignature.read, texts) if one is not None]


def _is_fresh(entry: Any, now: int) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int and now - entry[0] <= SILENT * 1000
