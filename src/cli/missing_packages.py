"""The message if packages are missing that the command needs in addition to the library."""

from __future__ import annotations

import json
import shlex
import sys
from typing import NoReturn
from urllib.parse import unquote


def without_extra(failure: ImportError) -> NoReturn:
    """Exit because a module that the command needs cannot be loaded; the text names it, and the remedy."""
    state = "is not installed" if isinstance(failure, ModuleNotFoundError) else "is of another version than needed"
    of_console = (failure.name or "").partition(".")[0] in {"starlette", "jinja2", "uvicorn"}
    sys.exit(f"latchwork: {failure.name} {state}; install the extra: {_remedy('console' if of_console else 'cli')}")


def _remedy(extra: str) -> str:
    """Return how the extra is installed from where the library came: the clone or the wheel, if that is known."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - it takes long to load

    try:
        origin = json.loads(distribution("latchwork").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    source = unquote(url.removeprefix("file://")) if url.startswith("file://") else ""
    return f"pip install {shlex.quote(f'{source}[{extra}]')}" if source else f"pip install 'latchwork[{extra}]'"
