"""From a URL to a store: `memory:`, `sqlite:PATH`, `aerospike://...`, and other registered backends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import platformdirs

from ..errors import InvalidRequest, Misconfigured
from ..logs import Log
from ..plain import shown
from .local.memory import MemoryStore
from .port import RecordStore
from .sqlite.store import SQLiteStore

log = Log(__name__)

VARIABLE = "LATCHWORK_STORE"
"""The environment variable that names the store where no argument does."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(:[0-9]{1,5})?")
SQLITE_OPTIONS = {"synchronous", "busy_timeout"}
"""All options of the URL of a SQLite file."""
EXAMPLES = "memory:, sqlite:PATH or aerospike://HOST:PORT/NAMESPACE"


def connect(url: str | None = None) -> RecordStore:
    """Return the store that a URL names: the argument, else `$LATCHWORK_STORE`, else a SQLite file in the user's data
    folder.

    Nothing is opened yet: the first call does that, in each process again. Each `memory:` is a new, empty store.
    `sqlite:PATH[?synchronous=full|normal|off&busy_timeout=SECONDS]` takes a relative, absolute or `~` path; a `?`,
    `%` or newline in it is written `%3F`, `%25`, `%0A`. If nothing names a store, the log says at INFO which one is
    used.

    Raises `InvalidRequest` for a URL that no backend understands.
    """
    if url is None:
        url = os.environ.get(VARIABLE) or None
    if url is None:
        url = embedded()
        log.info("no store is named, in connect(...) or in $%s: %s is used", VARIABLE, url)
    if not isinstance(url, str) or not url:
        given = "empty" if isinstance(url, str) else f"a {type(url).__name__}"
        raise InvalidRequest(f"the store's URL is {given}; use {EXAMPLES}, or None for the one that ${VARIABLE} names")
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _BACKENDS:
        hint = _as_path(url) or _as_scheme(scheme, rest if colon else "")
        raise InvalidRequest(f"no store has the URL {shown(hidden(url))}{hint}; use {EXAMPLES}")
    return _BACKENDS[scheme](url, rest)


def register(scheme: str, make: Callable[[str], RecordStore]) -> None:
    """Let `connect` make the stores of another backend: `make(url)` for every URL that begins with `scheme:`."""
    if not re.fullmatch("[a-z][a-z0-9+.-]*", scheme):
        raise InvalidRequest(f"{shown(scheme)} is not a URL scheme: use small letters, digits and +.-")
    _BACKENDS[scheme] = lambda url, _: make(url)


def as_store(store: object) -> RecordStore:
    """Return the store itself, if it is one. Primitives ask this first, so that a URL or a client is not taken for a
    store.

    Raises `InvalidRequest`.
    """
    if isinstance(store, RecordStore):
        return store
    given = "the URL of a store" if isinstance(store, str) else f"a {type(store).__name__}"
    raise InvalidRequest(f"{given} is not a store: pass what latchwork.connect(...) or AerospikeStore(...) returns")


def hidden(url: str) -> str:
    """Return the URL without the part that may be a secret: the text between the user's name and the last `@`.

    If there is no `@`, and the host is not a valid one, a password may stand there: then nothing behind the scheme is
    shown, and no scheme that may be a user's name.
    """
    scheme, _, rest = url.partition(":")
    place = rest.lstrip("/")
    start = url[: len(url) - len(place)]
    if url == "memory:" or (scheme == "sqlite" and not re.match("//[^/]", rest)):
        return url
    if not rest.startswith("//") or not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return "***"
    credentials, at, where = place.rpartition("@")
    if at:
        user, colon, _ = credentials.partition(":")
        return f"{start}{user}:***@{where}" if colon else f"{start}***@{where}"
    hosts = re.split("[/?#]", place)[0].split(",")
    return url if all(map(_HOST.fullmatch, hosts)) else f"{start}***"


def _as_path(url: str) -> str:
    """Return a hint for a path without its scheme. Nothing of it that may be a secret is shown."""
    if not re.match(r"(/|\.{1,2}/|~)", url) or url.startswith("//"):
        return ""
    is_plain = not re.search("[@:?#%]", url)
    return f": a file is named with sqlite: in front, {shown(f'sqlite:{url}') if is_plain else 'sqlite:/path'}"


def _as_scheme(scheme: str, rest: str) -> str:
    """Return that there is no such scheme, and which was perhaps meant; empty where it may be a user's name, or a part
    of a password.
    """
    near = get_close_matches(scheme, list(_BACKENDS), n=1, cutoff=0.75)
    is_scheme = re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme) and rest.startswith("/") and "@" not in rest
    if not rest or not (near or is_scheme):
        return ""
    return f": there is no scheme {shown(scheme)}" + (f" (did you mean {shown(near[0])}?)" if near else "")


def embedded() -> str:
    """Return the URL of the store that is used where none is named. Makes its folder. Raises `Misconfigured`."""
    folder = Path(platformdirs.user_data_dir("latchwork", appauthor=False))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise Misconfigured(
            f"cannot make {folder}: {failure.strerror}; name a store in ${VARIABLE} or in connect(...)"
        ) from None
    return "sqlite:" + str(folder / "store.db").replace("%", "%25").replace("?", "%3F")


def _memory(url: str, rest: str) -> RecordStore:
    if rest:
        raise InvalidRequest("a store in memory has no name and no options; write memory:")
    return MemoryStore()


def _sqlite(url: str, rest: str) -> RecordStore:
    path, _, query = re.sub("[\t\r\n]", "", rest).partition("?")  # a secret is often read with the end of its line
    if not path or path == ":memory:":
        raise InvalidRequest(f"{_place(url)} names no file: write sqlite:PATH, or memory: for a store in memory")
    if re.match("//[^/]", path):
        raise InvalidRequest(f"{_place(url)} names a host: write sqlite:/absolute/path or sqlite:relative/path")
    options = options_of(url, query, SQLITE_OPTIONS)
    return SQLiteStore(
        unquote(path, errors="surrogateescape"),  # bytes that are no UTF-8, which the store refuses
        synchronous=options.get("synchronous", "full").lower(),
        busy_timeout=seconds(url, "busy_timeout", options.get("busy_timeout", "5")),
    )


def _aerospike(url: str, _: str) -> RecordStore:
    from .aerospike.store import AerospikeStore  # noqa: PLC0415 - its C client is loaded only where it is used

    store: RecordStore = AerospikeStore.from_url(url)
    return store


def _place(url: str) -> str:
    """Return the URL without its options: somebody may have written a secret among them."""
    return shown(hidden(url).partition("?")[0])


def options_of(url: str, query: str, known: set[str]) -> Mapping[str, str]:
    """Return the options of a URL by name. Raises `InvalidRequest` for one that is unknown, doubled or has no value."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known or not value or name in options:
            raise InvalidRequest(
                f"option {shown(name)} of {_place(url)}: unknown, empty or given twice; "
                f"there are {', '.join(sorted(known))}"
            )
        options[name] = value
    return options


def seconds(url: str, name: str, value: str) -> float:
    """Return the value of an option that is a number of seconds. Raises `InvalidRequest`."""
    try:
        return float(value)
    except ValueError:
        raise InvalidRequest(f"option {name} of {_place(url)}: give seconds, such as 5") from None


_BACKENDS: dict[str, Callable[[str, str], RecordStore]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "aerospike": _aerospike,
}
