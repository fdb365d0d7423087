"""The stores of all farms, as an election over them names them on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ...errors import InvalidRequest
from ...plain import shown
from ...store.connect import hidden
from ...store.port import Key
from ..session import note

FarmStores = Annotated[
    list[str] | None,
    typer.Option(
        "--farm-store", envvar="LATCHWORK_FARM_STORES", metavar="FARM=URL",
        help="a farm and its store; repeat for each farm, or give all in the variable, with blanks between them",
    ),
]  # fmt: skip
ZooKeeper = Annotated[
    str | None, typer.Option(envvar="LATCHWORK_ZOOKEEPER", help="host:port[,...] of the ZooKeeper that elects")
]
Elections = Annotated[
    list[str] | None, typer.Option("--election", help="an election over all farms to look at; with --farm-store")
]


def urls_of(context: typer.Context, given: Sequence[str] | None) -> dict[str, str]:
    """Return the URL of each farm's store. Raises `InvalidRequest`, which quotes no URL: it may have a password."""
    urls: dict[str, str] = {}
    for place, one in enumerate(given or (), 1):
        farm, sign, url = one.partition("=")
        if not sign or not farm or not url or "/" in farm:
            raise InvalidRequest(
                f"--farm-store, number {place}, does not name a farm and a store: write FARM=URL, such as iad=sqlite:x"
            )
        if farm in urls:
            raise InvalidRequest(f"--farm-store names the farm {shown(farm)} twice: give each farm once")
        urls[farm] = url
    source = context.get_parameter_source("farm_store")
    if source is not None and source.name == "COMMANDLINE" and any(":***@" in hidden(url) for url in urls.values()):
        note(
            "every user of this machine can see a password in --farm-store (ps): use ?password_file=, or "
            "$LATCHWORK_FARM_STORES"
        )
    return urls


def key_of(text: str) -> Key:
    """Return the key that `SET/KEY` names. Raises `InvalidRequest`."""
    where, sign, name = text.partition("/")
    if not sign or not where or not name:
        raise InvalidRequest(f"--resource is {shown(text)}: write SET/KEY, such as accounts/42")
    return Key(where, name)


def only_with_farms(farms: Mapping[str, str], **given: object) -> None:
    """Refuse options of an election over all farms if no farms are named."""
    wrong = sorted(name for name, value in given.items() if value or value == "")
    if wrong and not farms:
        raise InvalidRequest(f"--{wrong[0].replace('_', '-')} is for an election over all farms: give --farm-store too")
