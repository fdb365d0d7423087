"""What every request passes before anything else looks at it: its host, where it comes from, and who asks."""

from __future__ import annotations

from collections.abc import Collection
from inspect import isawaitable
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..logs import Log
from .access import Access, Authorize, Secret, TooMany

log = Log(__name__)

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    # Not no-referrer: with it a browser says `Origin: null` of the console's own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
OPEN = ("/static/", "/sign-in")
"""Paths for which nobody need be known."""


class Gate:
    """Refuses what must not pass, and gives each response its headers, refusals too.

    hosts: names by which the console may be asked for, without port.
    """

    def __init__(self, inner: ASGIApp, authorize: Authorize, hosts: Collection[str]) -> None:
        self._inner, self._authorize = inner, authorize
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no live endpoint that is not HTTP
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope, receive)
        refusal = self.refusal(request)
        if refusal is None and not path_of(request).startswith(OPEN):
            access = await self._access(request)
            if isinstance(access, Access):
                request.state.access = access
            else:
                refusal = access
        await (refusal or self._inner)(scope, receive, guarded)

    def refusal(self, request: Request) -> Response | None:
        """Return why a request must not pass, whoever asks; None if it may."""
        host = request.headers.getlist("host")
        if len(host) != 1 or name_of(host[0]) not in self._hosts:
            return PlainTextResponse("this host name is not allowed here\n", 421)
        if request.method in {"GET", "HEAD"}:
            return None
        if request.method != "POST":
            return PlainTextResponse("only GET and POST\n", 405, {"allow": "GET, HEAD, POST"})
        site, origin = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
        if not site and not origin:
            return PlainTextResponse("neither Origin nor Sec-Fetch-Site says where this comes from\n", 403)
        if any(one != "same-origin" for one in site) or any(not is_origin_of(one, host[0]) for one in origin):
            return PlainTextResponse("this comes from another site\n", 403)
        return None

    async def _access(self, request: Request) -> Access | Response:
        """Return who asks, or the refusal. An authorization that fails is a refusal."""
        wait = 0.0
        try:
            found: object = await run_in_threadpool(self._authorize, request)
            if isawaitable(found):
                found = await found
        except TooMany as failure:
            found, wait = None, failure.wait
        except Exception as failure:  # noqa: BLE001 - whatever it is, nobody was let in by it
            log.warning("nobody was let in, as authorize() failed: %s", type(failure).__name__)
            found = None
        if isinstance(found, Access):
            return found
        if wait:
            return PlainTextResponse("too many wrong secrets\n", 429, {"retry-after": str(int(wait) + 1)})
        is_form = isinstance(self._authorize, Secret)
        if path_of(request).startswith("/api/"):
            return JSONResponse({"error": "not allowed"}, 401 if is_form else 403)
        if is_form and request.method in {"GET", "HEAD"}:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", 303)
        return PlainTextResponse("you are not allowed to see this\n", 403)


def path_of(request: Request) -> str:
    """Return the path below the place where the console is mounted."""
    path, root = str(request.scope["path"]), str(request.scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def name_of(host: str) -> str:
    """Return the name in a Host header, without its port; empty if it is none."""
    try:
        parts = urlsplit(f"//{host.lower()}")
        plain = parts.path == parts.query == parts.fragment == "" and parts.username is None
        return parts.hostname or "" if plain and (parts.port is None or parts.port >= 0) else ""
    except ValueError:
        return ""


def is_origin_of(origin: str, host: str) -> bool:
    """Whether pages of this origin are the console's own, at this Host. A proxy may have taken off the https."""
    scheme, _, rest = origin.lower().partition("://")
    return scheme in {"http", "https"} and rest == host.lower()
