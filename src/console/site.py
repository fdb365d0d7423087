"""The application: its screens, which are the pages of `latchwork top` as HTML and as JSON, and its actions."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..cli.bulk import NOT_TRIED
from ..cli.top import pages
from ..cli.top.actions import SAMPLE, Action
from ..cli.top.feed import Place, outboxes_of
from ..cli.top.table import BAD, BARS, Line, Row, Table
from ..deadline import Deadline
from ..errors import InvalidRequest, LatchworkError, NotFound, OutcomeUnknown
from ..inputs import checked_many, checked_switch, farm_or_default
from ..logs import Log
from ..observe.document import document_of
from ..plain import one_line, shown
from ..queue.sharded.sides import SIDES
from ..queue.sharded.slots import Slot
from ..store import RecordStore
from ..store.connect import as_store
from .access import COOKIE, LIFE, Access, Authorize, Secret, TooMany
from .actions import COORD, VERBS, Answers, Confirmed, Tickets, Wanted, action_of
from .charts import charts_of
from .gate import Gate, path_of
from .messages import MATCHES, Redact, match_of, message_of
from .reader import Kept, Reader
from .runs import Held, Runs, facts_of

log = Log(__name__)

SCREENS: Mapping[str, Callable[[Reader], Table]] = {
    "overview": lambda reader: pages.overview(reader, WIDE),
    "queues": lambda reader: pages.queues(reader, BARS),
    "workers": pages.workers,
    "schedules": pages.schedules,
    **{kind: partial(pages.coordination, kind=kind) for kind in pages.COORD},
    "streams": pages.streams,
    "outboxes": pages.outboxes,
    "farms": pages.farms,
    "audit": pages.audit,
}
"""The screens that are one table, in the order in which they are named."""
WIDE = 10_000
"""Columns of a finding's text: it is broken by the browser."""
LOCAL = ("localhost", "127.0.0.1", "::1")
WITHIN = 2.4
"""Seconds for a page; then it is shown without the parts that are missing."""
MOST_BODY = 65_536
"""Bytes of a form."""
FORM = "application/x-www-form-urlencoded"
STATIC = {"console.css": "text/css", "console.js": "text/javascript", "htmx.min.js": "text/javascript",
          "icon.svg": "image/svg+xml"}  # fmt: skip


def app(
    stores: RecordStore | Mapping[str, RecordStore],
    clients: Sequence[str] | None = None,
    *,
    authorize: Authorize,
    actions: bool = False,
    hosts: Collection[str] = LOCAL,
    redact: Redact | None = None,
    outboxes: Sequence[str] = (),
    key: bytes | None = None,
) -> ASGIApp:
    """Return the console as an ASGI application, to be served, or mounted into another one. No I/O.

    stores: of each farm, by its name; or one store, of the farm $LATCHWORK_FARM.
    clients: None = all that there are.
    authorize: returns the `Access` of a request, or None; if it raises, that is a refusal. Or a `Secret`, or a
        `ProxyHeader`. It is called in a thread; it may be `async`.
    actions: whether anything can be changed, by the roles that may.
    hosts: names by which it may be asked for; any other Host is refused.
    redact: called with the queue's name and each message whose payload may be shown; returns what is shown instead. If
        it raises, nothing is shown.
    outboxes: `DIRECTORY:PREFIX` of each outbox on this machine that is shown, or `DIRECTORY:PREFIX:NAME`.
    key: at least 16 bytes that are secret, and the same in all processes that serve one console; None = made here.

    Raises `InvalidRequest`.
    """
    if not callable(authorize):
        raise InvalidRequest("authorize is not callable: give a function of the request, a Secret or a ProxyHeader")
    if key is not None and len(key) < 16:
        raise InvalidRequest(f"key has {len(key)} bytes; give at least 16")
    if isinstance(hosts, str) or not hosts:
        raise InvalidRequest(f"hosts is {shown(hosts)}; give a list of names")

    farms = stores if isinstance(stores, Mapping) else {farm_or_default(None): stores}
    if not farms:
        raise InvalidRequest("stores is empty: give a store, or one of each farm, as {farm: store}")
    known = {farm: as_store(store) for farm, store in farms.items()}
    named = None if clients is None else list(checked_many("clients", clients))
    there = outboxes_of(checked_many("outboxes", outboxes)) if outboxes else []
    site = Site(
        known, named, authorize, actions=checked_switch("actions", actions), redact=redact, key=key, outboxes=there
    )
    return Gate(
        Starlette(routes=site.routes, exception_handlers={404: site.nothing, Exception: site.broken}), authorize, hosts
    )


class Site:
    """The pages. Safe to share between threads."""

    def __init__(
        self,
        stores: Mapping[str, RecordStore],
        clients: Sequence[str] | None,
        authorize: Authorize,
        *,
        actions: bool,
        redact: Redact | None,
        key: bytes | None,
        outboxes: Sequence[Place],
    ) -> None:
        self._outboxes = outboxes
        self._stores, self._clients, self._actions, self._redact = stores, clients, actions, redact
        self._secret = authorize if isinstance(authorize, Secret) else None
        self._seams = next(iter(stores.values())).seams
        self._kept = Kept(self._seams.lock())
        self._runs, self._answers = Runs(self._seams), Answers(self._seams)
        made = (self._seams.unique() + self._seams.unique()).encode()
        self._tickets = Tickets(hmac.digest(key or made, b"tickets", "sha256"), self._seams)
        self._pages = _pages()
        self._files = {name: (Path(__file__).parent / "static" / name).read_bytes() for name in STATIC}
        self.routes = [
            Route("/", self._in_thread(partial(self._screen, name="overview")), name="overview"),
            *(Route(f"/{name}", self._in_thread(partial(self._screen, name=name))) for name in SCREENS),
            Route("/queue", self._in_thread(self._queue)),
            Route("/messages", self._in_thread(self._messages)),
            Route("/message", self._in_thread(self._message)),
            Route("/choose", self._in_thread(self._choose)),
            Route("/run", self._in_thread(self._run)),
            Route("/act", self._in_thread(self._confirm), methods=["GET"]),
            Route("/act", self._act, methods=["POST"]),
            Route("/api/v0/run", self._in_thread(lambda request: JSONResponse(facts_of(self._held(request))))),
            Route("/api/v0/{screen}", self._in_thread(self._api)),
            Route("/static/{name}", self._static),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]

    # ---- what is read

    def _screen(self, request: Request, name: str) -> Response:
        reader = self._reader()
        return self._table(request, reader, name, SCREENS[name](reader), live=True)

    def _queue(self, request: Request) -> Response:
        reader, key = self._reader(), self._key(request)
        days = 14.0 if request.query_params.get("days") == "14" else 1.0
        fetched = pages.history_of(reader, key, days)
        there = pages.queue_in(reader, key)
        return self._table(
            request, reader, "queue", pages.queue_now(reader, key, WIDE), live=True, key=key, days=days,
            charts=charts_of(fetched.value, days) if fetched.value else None,
            old_charts=fetched.failure, no_charts=fetched.failure or pages.NOTHING_NOTED,
            state=there[1] if there else None, runs=self._runs.of(key),
        )  # fmt: skip

    def _messages(self, request: Request) -> Response:
        reader, key, given = self._reader(), self._key(request), request.query_params
        side, match = given.get("side", "parked"), match_of(given, given.get("side", "parked"))
        if side not in SIDES:
            raise InvalidRequest(f"side is {shown(side)}; it must be one of {', '.join(SIDES)}")
        page = pages.MessagePage(key, side, match=match, after=slot_of(given.get("after", "")))
        more = page.fetched(reader).value
        return self._table(
            request, reader, "messages", page.table(reader), key=key, side=side, sides=SIDES, given=given,
            matches=MATCHES if side != "ready" else (), chosen="all" in given,
            after=f"{more.after.shard}.{more.after.pointer}" if more and more.after else "",
        )  # fmt: skip

    def _run(self, request: Request) -> Response:
        held = self._held(request)
        run, reader = held.run, self._reader()
        stop = Wanted("stop", held.key, run=held.id)
        rows = sorted(run.rows(), key=lambda row: row[1] in {"done", NOT_TRIED})
        return self._html(
            request, "run.html", reader, title=held.title, held=held, run=run, key=held.key, rows=rows[:pages.MESSAGES],
            live=True, every=1 if run.has_begun and not run.is_over else 5, stop=stop,
            ticket=self._tickets.made(access_of(request), stop, f"stop {one_line(held.title)}"),
        )  # fmt: skip

    def _held(self, request: Request) -> Held:
        return self._runs.get(request.query_params.get("id", ""))

    def _message(self, request: Request) -> Response:
        reader, key, access = self._reader(), self._key(request), access_of(request)
        wanted = request.query_params.get("id", "").strip()
        found = message_of(reader, key, wanted, self._redact, payloads=access.payloads)
        return self._html(request, "message.html", reader, key=key, id=wanted, found=found, title="message", live=True)

    def _api(self, request: Request) -> Response:
        name = request.path_params["screen"]
        if name not in SCREENS:
            return JSONResponse({"error": "no such screen", "screens": list(SCREENS)}, 404)
        reader = self._reader()
        if name == "overview" and reader.found is not None:
            return JSONResponse(document_of(reader.found))
        table = SCREENS[name](reader)
        titles = [column.title for column in table.columns]
        rows = [dict(zip(titles, row.cells, strict=True)) for row in table.rows]
        return JSONResponse({"rows": rows, "notes": [line.text for line in table.notes], "away": reader.away})

    # ---- what is done

    def _confirm(self, request: Request) -> Response:
        reader, wanted = self._reader(), Wanted.of(request.query_params.multi_items())
        return self._asked(request, reader, wanted)

    def _choose(self, request: Request) -> Response:
        reader, wanted = self._reader(), Wanted.of(request.query_params.multi_items())
        self._allowed(request, wanted)
        return self._asked(request, reader, self._runs.chosen(reader, wanted, request.query_params))

    def _action_of(self, reader: Reader, wanted: Wanted) -> Action | str:
        return self._runs.action_of(wanted) if wanted.run else action_of(reader, wanted)

    def _asked(self, request: Request, reader: Reader, wanted: Wanted, said: str = "") -> Response:
        access = self._allowed(request, wanted)
        action = self._action_of(reader, wanted)
        if isinstance(action, str):
            return self._html(request, "done.html", reader, wanted=wanted, said=action, title="not done", status=409)
        ticket = self._tickets.made(access, wanted, action.title)
        return self._html(
            request, "confirm.html", reader, wanted=wanted, action=action, ticket=ticket, said=said, title=action.title,
            chosen=self._runs.get(wanted.run).run.chosen.names if wanted.run else [], sample=SAMPLE,
        )  # fmt: skip

    async def _act(self, request: Request) -> Response:
        fields = await form_of(request)
        return await run_in_threadpool(self._guarded, request, lambda one: self._do(one, fields))

    def _do(self, request: Request, fields: list[tuple[str, str]]) -> Response:
        access, given = access_of(request), dict(fields)
        wanted = Wanted.of(fields)
        self._allowed(request, wanted)
        reader, confirmed = self._reader(), (access.name, given.get("ticket", ""), wanted)
        if (before := self._answers.of(confirmed)) is not None:
            said = f"Nothing was done again. When this was confirmed first: {before}"
            return self._html(request, "done.html", reader, wanted=wanted, said=said, title="done before")
        action = self._action_of(reader, wanted)
        if isinstance(action, str):
            return self._html(request, "done.html", reader, wanted=wanted, said=action, title="not done", status=409)
        if not self._tickets.holds(given.get("ticket", ""), access, wanted, action.title):
            said = "Nothing was done: this was not confirmed, or too long ago, or it has changed meanwhile."
            return self._asked(request, reader, wanted, said)
        if COORD.get(wanted.verb) == "locks" and given.get("typed", "") != wanted.key[2]:
            return self._asked(request, reader, wanted, "Nothing was done: the name of the lock was not typed.")
        return self._carried_out(request, reader, action, confirmed, given.get("why", ""))

    def _carried_out(
        self, request: Request, reader: Reader, action: Action, confirmed: Confirmed, why: str
    ) -> Response:
        who, _, wanted = confirmed
        run_page = f"{base_of(request)}/run?{urlencode({'id': wanted.run})}"
        if wanted.run and wanted.verb != "stop":
            self._runs.begin(wanted, action, reader, who, why)
            return RedirectResponse(run_page, 303)
        try:
            with self._answers.once(confirmed) as answers:
                answers.append(action.do(reader, who, why))
        finally:
            self._kept.clear()
        if wanted.run:
            return RedirectResponse(run_page, 303)
        return self._html(request, "done.html", reader, wanted=wanted, said=answers[-1], title="done")

    def _allowed(self, request: Request, wanted: Wanted) -> Access:
        access = access_of(request)
        if not self._may(access, wanted.verb):
            raise NotAllowed(f"{wanted.verb} needs the role {VERBS[wanted.verb]}, and a console that allows actions")
        return access

    def _may(self, access: Access, verb: str) -> bool:
        return self._actions and access.may(VERBS[verb])

    # ---- who is there

    async def _sign_in(self, request: Request) -> Response:
        if self._secret is None:
            return await run_in_threadpool(self._failed, request, NotFound("nobody signs in here"), 404)
        if request.method != "POST":  # a HEAD tries no secret
            return await run_in_threadpool(self._html, request, "sign-in.html", title="sign in")
        given = dict(await form_of(request))
        try:
            cookie = self._secret.sign_in(request, given.get("secret", ""), given.get("who", ""))
        except TooMany as failure:
            cookie, wait = None, int(failure.wait) + 1
            said = f"Too many wrong secrets: try again in {wait} s."
        else:
            said = "This is not the secret."
        if cookie is None:
            return await run_in_threadpool(self._html, request, "sign-in.html", title="sign in", said=said, status=403)
        answer = RedirectResponse(f"{base_of(request)}/", 303)
        self._set_cookie(request, answer, cookie, int(LIFE))
        return answer

    async def _sign_out(self, request: Request) -> Response:
        answer = RedirectResponse(f"{base_of(request)}/", 303)
        self._set_cookie(request, answer, "", 0)
        return answer

    def _set_cookie(self, request: Request, answer: Response, value: str, life: int) -> None:
        is_secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(
            COOKIE, value, max_age=life, path=base_of(request) or "/", secure=is_secure, httponly=True, samesite="lax"
        )

    # ---- how it is shown

    def _key(self, request: Request) -> tuple[str, str, str]:
        """Return the queue that a query names, with its farm and client. Raises `NotFound`."""
        farm, client, name = (request.query_params.get(one, "") for one in ("farm", "client", "name"))
        if farm not in self._stores:
            raise NotFound(f"there is no farm {shown(farm)}; there are {', '.join(self._stores)}")
        return farm, client, name

    def _reader(self) -> Reader:
        return Reader(self._stores, self._clients, self._seams, self._kept, self._outboxes)

    def _table(self, request: Request, reader: Reader, screen: str, table: Table, **facts: Any) -> Response:
        given = request.query_params
        table = table.matching(given.get("q", ""))
        sort, down = given.get("sort", ""), given.get("down", "") == "1"
        if sort.isascii() and sort.isdigit() and int(sort[:3]) < len(table.columns):
            table = table.sorted_by(int(sort[:3]), down=down)
        shown_columns = [n for n in table.shown(WIDE) if table.columns[n].title != "lately"]

        def sorted_url(column: int) -> str:
            others = [(name, value) for name, value in given.multi_items() if name not in {"sort", "down"}]
            turned = not down if sort == str(column) else table.columns[column].right
            return "?" + urlencode([*others, ("sort", column), *([("down", 1)] if turned else [])])

        return self._html(
            request, "table.html", reader, screen=screen, title=facts.get("title", screen), table=table,
            shown=shown_columns, links=[link_of(screen, row, facts.get("key", ())) for row in table.rows],
            sorted_url=sorted_url, sort=sort, down=down, q=given.get("q", ""),
            # Another filter begins at the first page again.
            kept=[(name, value) for name, value in given.multi_items() if name not in {"q", "all", "after"}], **facts,
        )  # fmt: skip

    def _html(
        self, request: Request, template: str, reader: Reader | None = None, *, status: int = 200, **facts: Any
    ) -> Response:
        access = getattr(request.state, "access", None)
        base, query = base_of(request), request.url.query
        text = self._pages.get_template(template).render(
            base=base, here=f"{base}{path_of(request)}{f'?{query}' if query else ''}", access=access,
            screens=list(SCREENS), away=reader.away if reader else {},
            age=pages.oldest(reader) if reader else "", signs_out=self._secret is not None,
            coord=COORD, may=lambda verb: access is not None and self._may(access, verb),
            url=lambda path, **given: f"{base}{path}?{urlencode(given)}", one_line=one_line, **facts,
        )  # fmt: skip
        return HTMLResponse(text, status)

    def _in_thread(self, page: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(self._guarded, request, page)

        return endpoint

    def _guarded(self, request: Request, page: Callable[[Request], Response]) -> Response:
        """Return the page, within a limit of time; a page that says why where it cannot be made."""
        try:
            with Deadline(self._seams, WITHIN):
                return page(request)
        except NotAllowed as refusal:
            return self._failed(request, refusal, 403)
        except LatchworkError as failure:
            status = 404 if isinstance(failure, NotFound) else 400 if isinstance(failure, InvalidRequest) else 503
            return self._failed(request, failure, status)

    def _failed(self, request: Request, failure: Exception, status: int) -> Response:
        text = one_line(str(failure))
        if path_of(request).startswith("/api/"):
            return JSONResponse({"error": text}, status)
        notes = [Line(text, BAD)]
        title = "not shown" if request.method != "POST" else "failed"
        if isinstance(failure, OutcomeUnknown):
            title = "perhaps done"
        return self._html(request, "failed.html", title=title, notes=notes, status=status)

    async def nothing(self, request: Request, _: Exception) -> Response:
        """Return a page for a path that leads nowhere."""
        return await run_in_threadpool(self._failed, request, NotFound("there is no such page"), 404)

    async def broken(self, request: Request, failure: Exception) -> Response:
        """Return a page that says nothing of a defect but its type."""
        log.error("the console failed at %s: %s", one_line(path_of(request)), type(failure).__name__)
        return HTMLResponse(f"the console failed: {type(failure).__name__}\n", 500)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            return Response("there is no such file\n", 404, media_type="text/plain")
        return Response(self._files[name], media_type=STATIC[name])


@cache
def _pages() -> Environment:
    """Return the templates, which all sites of a process share: each is compiled once."""
    return Environment(loader=PackageLoader("latchwork.console"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


class NotAllowed(Exception):
    """The role of a person does not allow an action."""


def access_of(request: Request) -> Access:
    """Return who asks, as the gate has found."""
    access: Access = request.state.access
    return access


def base_of(request: Request) -> str:
    """Return the path at which the console is mounted."""
    return str(request.scope.get("root_path", ""))


async def form_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form. Raises `InvalidRequest`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            break
    if len(body) > MOST_BODY or not request.headers.get("content-type", "").startswith(FORM):
        return []
    try:
        return parse_qsl(body.decode(), max_num_fields=1_000, keep_blank_values=True)
    except ValueError:
        return []


def slot_of(text: str) -> Slot | None:
    """Return where a page of messages goes on. Raises `InvalidRequest`."""
    parts = text.split(".")
    if not text:
        return None
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise InvalidRequest(f"after is {shown(text)}; it must be SHARD.POINTER")
    return Slot(*map(int, parts))


def link_of(screen: str, row: Row, key: Sequence[str]) -> str:
    """Return where a row leads, below the place of the console; empty if nowhere."""
    if row.key is None:
        return ""
    if screen == "overview":
        return "/queues?" + urlencode({"q": row.key[1]})
    if screen in {"queues", "workers", "streams"}:
        return "/queue?" + urlencode(dict(zip(("farm", "client", "name"), row.key[:3], strict=True)))
    if screen == "messages":
        named = dict(zip(("farm", "client", "name"), key, strict=True))
        return "/message?" + urlencode({**named, "id": row.key[1]})
    return ""
