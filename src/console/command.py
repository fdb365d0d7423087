"""`latchwork console`: serve the web console from this machine."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from ..cli.audit import person
from ..cli.coord.farms import FarmStores, urls_of
from ..cli.exit_codes import FAILED
from ..cli.options import Clients, Farm, Outboxes
from ..cli.serving import listening
from ..cli.session import Session, note
from ..errors import InvalidRequest
from ..inputs import farm_or_default
from ..plain import shown
from .access import Access, Authorize, ProxyHeader, Secret
from .site import LOCAL, app

BACKLOG = 2048
"""Connections that may wait to be accepted, as uvicorn has it."""
SECRET_VARIABLE = "LATCHWORK_CONSOLE_SECRET"  # noqa: S105 - the name of the variable


def console(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="the port")] = 8765,
    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0 is all addresses")] = "127.0.0.1",
    client: Clients = None,
    secret_file: Annotated[
        Path | None, typer.Option(help=f"a file with the secret to sign in with [default: ${SECRET_VARIABLE}]")
    ] = None,
    proxy_header: Annotated[
        str | None, typer.Option(help="the header in which a proxy names the person that it has signed in")
    ] = None,
    proxy_peer: Annotated[list[str] | None, typer.Option(help="the address of that proxy; repeat for each")] = None,
    role: Annotated[str, typer.Option(help="the role of everybody who signs in: viewer, operator or admin")] = "viewer",
    payloads: Annotated[bool, typer.Option("--payloads", help="show payloads to everybody who signs in")] = False,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="let operators and admins change things")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="a name by which browsers may ask for it; repeat for each")
    ] = None,
    outbox: Outboxes = None,
    farm: Farm = None,
    farm_store: FarmStores = None,
) -> None:
    """Serve the web console: what `top` shows, in a browser.

    Without a secret and a proxy it listens on this machine alone, shows no payloads, and changes nothing. Any other
    address, --payloads, --allow-actions and roles need --secret-file, $LATCHWORK_CONSOLE_SECRET, or --proxy-header with
    --proxy-peer. It speaks HTTP: put a proxy with TLS before it, or a tunnel. Ctrl-C or SIGTERM ends it.

    Example: latchwork console --port 8765 --client shop
    """
    session: Session = context.obj
    authorize = _authorize(_secret(secret_file), proxy_header, proxy_peer or (), role, payloads=payloads)
    if authorize is None:
        wanted = {"--host": not _is_local(host), "--role": role != "viewer"}
        wanted |= {"--payloads": payloads, "--allow-actions": allow_actions}
        if refused := [name for name, given in wanted.items() if given]:
            raise InvalidRequest(
                f"{refused[0]} needs authentication: give --secret-file or ${SECRET_VARIABLE}, or --proxy-header with "
                "--proxy-peer"
            )
        me = Access(person()[:100])
        authorize = lambda _: me  # noqa: E731 - who can reach it is on this machine
    stores = session.stores_of(urls_of(context, farm_store)) or {farm_or_default(farm): session.store}
    # The address of the line below may be asked for; 0.0.0.0 and :: are none.
    hosts = [*LOCAL, *(allow_host or ()), *([] if _is_any(host) else [host])]
    served = app(stores, client, authorize=authorize, actions=allow_actions, hosts=hosts, outboxes=outbox or ())
    listeners = listening(host, port, backlog=BACKLOG)  # first: it says why it cannot
    note(f"the console is at http://{f'[{host}]' if ':' in host else host}:{port}/")
    server = uvicorn.Server(
        uvicorn.Config(
            served, access_log=False, proxy_headers=False, server_header=False, log_level="warning", log_config=None
        )
    )
    with suppress(KeyboardInterrupt):
        server.run(sockets=listeners)
    if not server.started:  # its log says why
        raise typer.Exit(FAILED)


def _secret(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(SECRET_VARIABLE)
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as failure:
        raise InvalidRequest(f"--secret-file {shown(str(file))} cannot be read: {type(failure).__name__}") from None


def _authorize(
    secret: str | None, header: str | None, peers: Collection[str], role: str, *, payloads: bool
) -> Authorize | None:
    if secret is not None and header is not None:
        raise InvalidRequest("a secret and --proxy-header: give one, not both")
    if (header is None) != (not peers):
        raise InvalidRequest(
            "--proxy-header and --proxy-peer go together: the header is believed from these peers only"
        )
    if header is not None:
        return ProxyHeader(header, peers, role, payloads=payloads)
    return None if secret is None else Secret(secret, role, payloads=payloads)


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return not host


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
