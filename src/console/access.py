"""Who may see and do what: an application decides, or a secret, or a proxy that has signed people in."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from urllib.parse import quote, unquote

from starlette.requests import Request

from ..errors import InvalidRequest
from ..inputs import checked_switch
from ..plain import one_line, shown
from ..seams import SYSTEM, Seams

ROLES = ("viewer", "operator", "admin")
"""Each may do what the ones before it may."""
LEAST_SECRET, MOST_SECRET = 16, 512
"""Characters."""
MOST_NAME = 100
LIFE = 12 * 3_600.0
"""Seconds for which a person stays signed in."""
FREE, LONGEST, PEERS = 5, 60.0, 1_024
"""Wrong secrets of an address that have no consequence; seconds that it then waits at most; addresses remembered."""
COOKIE = "latchwork_console"


@dataclass(frozen=True, slots=True)
class Access:
    """What one person may do.

    name: for the audit record.
    role: `viewer` sees everything but payloads; `operator` also pauses, redrives and discards; `admin` also
        deactivates and activates queues.
    payloads: whether payloads, headers, notes of handlers and results of steps are shown.

    Raises `InvalidRequest`.
    """

    name: str
    role: str = "viewer"
    payloads: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequest(f"role is {shown(self.role)}; it must be viewer, operator or admin")
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MOST_NAME:
            raise InvalidRequest(f"name is {shown(self.name)}; give 1 to {MOST_NAME} characters")
        checked_switch("payloads", self.payloads)

    def may(self, role: str) -> bool:
        """Whether this role, or a higher one, was given."""
        return ROLES.index(self.role) >= ROLES.index(role)


Authorize = Callable[[Request], "Access | Awaitable[Access | None] | None"]
"""Says who asks; None, or an exception, is a refusal."""


class Secret:
    """Everybody who knows a secret: signed in by a form, or `Authorization: Bearer` in a program.

    The name is what each says of itself. Each wrong secret after the fifth from an address makes it wait, up to a
    minute. It is safe to share between threads. Raises `InvalidRequest` for a short secret.
    """

    def __init__(self, secret: str, role: str = "viewer", *, payloads: bool = False, seams: Seams = SYSTEM) -> None:
        if not isinstance(secret, str) or not LEAST_SECRET <= len(secret) <= MOST_SECRET:
            raise InvalidRequest(f"the secret must have {LEAST_SECRET} to {MOST_SECRET} characters; make a random one")
        self._secret, self._seams = secret.encode(), seams
        self._key = hmac.digest(self._secret, b"latchwork console", "sha256")
        self._role, self._payloads = role, payloads
        self._access("test")  # raises for a wrong role now
        self._lock, self._wrong = seams.lock(), dict[str, tuple[int, float]]()

    def __call__(self, request: Request) -> Access | None:
        """Return whom the cookie or the header names. Raises `TooMany`."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._access("bearer") if self.matches(request, given) else None
        return self._of_cookie(request.cookies.get(COOKIE, ""))

    def sign_in(self, request: Request, given: str, name: str) -> str | None:
        """Return a cookie for this name; None if the secret is wrong. Raises `TooMany`."""
        if not self.matches(request, given):
            return None
        body = f"{int(self._seams.wall() + LIFE)}.{quote(one_line(name.strip())[:MOST_NAME] or 'somebody', safe='')}"
        return f"{body}.{self._mark(body)}"

    def matches(self, request: Request, given: str) -> bool:
        """Whether this is the secret; a wrong one is counted. Raises `TooMany`."""
        peer = request.client.host if request.client else ""
        with self._lock:
            now, (count, last) = self._seams.monotonic(), self._wrong.get(peer, (0, 0.0))
            left = last + min(LONGEST, 2.0 ** (count - FREE)) - now if count >= FREE else 0.0
            if left > 0:
                raise TooMany(left)
            self._wrong.pop(peer, None)  # so that the ones that tried last stand last
            if hmac.compare_digest(given.encode("utf-8", "replace"), self._secret):
                return True
            if len(self._wrong) >= PEERS:
                self._wrong.pop(next(iter(self._wrong)), None)
            self._wrong[peer] = min(count + 1, 100), now
            return False

    def _of_cookie(self, cookie: str) -> Access | None:
        body, _, mark = cookie.rpartition(".")
        if not hmac.compare_digest(mark.encode("utf-8", "replace"), self._mark(body).encode()):
            return None
        until, _, name = body.partition(".")
        return self._access(unquote(name)[:MOST_NAME]) if self._seams.wall() < int(until) else None

    def _access(self, name: str) -> Access:
        return Access(name, self._role, self._payloads)

    def _mark(self, body: str) -> str:
        return hmac.digest(self._key, body.encode("utf-8", "replace"), "sha256").hex()


class TooMany(Exception):
    """Too many wrong secrets came from an address. wait: seconds until it may try again."""

    def __init__(self, wait: float) -> None:
        super().__init__("too many wrong secrets")
        self.wait = wait


class ProxyHeader:
    """Whoever a proxy has signed in, by a header that is believed only from the addresses of `peers`.

    The proxy must remove the header from what it is sent. The address is the one that the server states: it must not
    take it from a header itself, as uvicorn does with `proxy_headers`. It is safe to share between threads. Raises
    `InvalidRequest`.
    """

    def __init__(self, header: str, peers: Collection[str], role: str = "viewer", *, payloads: bool = False) -> None:
        if isinstance(peers, str) or not peers:
            raise InvalidRequest(f"peers is {shown(peers)}; give a list of the addresses of the proxy")
        self._header, self._peers, self._role, self._payloads = header, frozenset(peers), role, payloads
        Access("test", role, payloads)

    def __call__(self, request: Request) -> Access | None:
        """Return whom the header names."""
        names = request.headers.getlist(self._header)
        if request.client is None or request.client.host not in self._peers or len(names) != 1 or not names[0].strip():
            return None
        return Access(one_line(names[0].strip())[:MOST_NAME], self._role, self._payloads)
