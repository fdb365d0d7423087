"""The probes of all children at one port of the parent. No child is waited for without limit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from ...seams import SYSTEM
from ..probe import JSON, NOT_FOUND, checked_port, is_slow
from ..serving import PATIENCE, TEXT, Answer, Server
from .parent import Parent

SILENT = 30.0
"""Seconds without a word of a child after which `/healthz` names it."""
_HEAD = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.+)")


class ParentProbe:
    """An HTTP server in the parent: `/healthz`, `/readyz`, `/metrics`, `/scale/QUEUE`, as of one worker.

    Raises `InvalidRequest` if it cannot listen there.
    """

    def __init__(self, parent: Parent, host: str, port: int) -> None:
        self._parent = parent
        self._server = Server(host, checked_port(port), SYSTEM, self.answer, is_slow)
        self.port = self._server.port

    def __enter__(self) -> ParentProbe:
        self._server.start("latchwork-probe")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def answer(self, path: str) -> Answer:
        """Return the status, the content type and the body for a path."""
        if path == "/healthz":
            silent = "".join(f"{name} has said nothing for {SILENT:g} s\n" for name in self._parent.silent(SILENT))
            return (503, TEXT, silent.encode()) if silent else (200, TEXT, b"ok\n")
        if path == "/readyz":
            at_work, of = len(self._parent.at_work()), len(self._parent.seats)
            text = f"{at_work} of {of} children take messages\n".encode()
            return (200 if at_work else 503), TEXT, text
        if path == "/metrics":
            return self._metrics()
        if path.startswith("/scale/"):
            return self._scale(path)
        return NOT_FOUND

    def _metrics(self) -> Answer:
        children = self._parent.at_work()
        end = SYSTEM.monotonic() + PATIENCE
        found = self._parent.ask(children, "/metrics", PATIENCE / 2)
        # The figures of the queues are the store's: one child reads them for all.
        queues = next(iter(self._parent.ask(children[:1], "/metrics/queues", end - SYSTEM.monotonic()).values()), None)
        texts = {str(child.number): body.decode() for child, (status, _, body) in found.items() if status == 200}
        if not texts:
            failed = next((answer for answer in found.values() if answer[0] != 200), None)
            return failed or (503, TEXT, b"no child has answered\n")
        kind = next(kind for status, kind, _ in found.values() if status == 200)
        from prometheus_client import REGISTRY, generate_latest  # noqa: PLC0415 - an extra; a child has answered, so it is there

        texts["parent"] = generate_latest(REGISTRY).decode()  # of this process, in which no handler runs
        return 200, kind, merged(texts, queues[2].decode() if queues and queues[0] == 200 else "").encode()

    def _scale(self, path: str) -> Answer:
        queue = unquote(path.removeprefix("/scale/"))
        asked = self._parent.at_work()[:1]
        found = self._parent.ask(asked, path, PATIENCE, self._parent.totals(queue))
        none = {"error": "UNAVAILABLE", "message": "no child has answered"}
        return next(iter(found.values()), (503, JSON, json.dumps(none).encode() + b"\n"))


def merged(texts: dict[str, str], common: str) -> str:
    """Return metrics of several processes as one page: each sample gets the label `child`, and each family is there
    once, with its lines together, as Prometheus wants it.

    common: metrics that are the same in all; the others' are left out.
    """
    families: dict[str, _Family] = {}
    _add(families, common, None, frozenset())
    of_all = frozenset(families)
    for child, text in texts.items():
        _add(families, text, child, of_all)
    return "".join(f"{line}\n" for family in families.values() for line in (*family.heads, *family.samples))


@dataclass
class _Family:
    """The lines of a metric: what it is, and its samples."""

    heads: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def _add(families: dict[str, _Family], text: str, child: str | None, but: frozenset[str]) -> None:
    """Add the lines of a page, but for those of some families; the lines of a family are together in it."""
    name = ""
    for line in text.split("\n"):  # a label may have other ends of lines
        if head := _HEAD.match(line):
            name = head[1]
        if not line or not name or name in but:
            continue
        family = families.setdefault(name, _Family())
        if not line.startswith("#"):
            family.samples.append(line if child is None else _labelled(line, child))
        elif line not in family.heads:
            family.heads.append(line)


def _labelled(line: str, child: str) -> str:
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        return line
    name, labels, value = sample.groups()
    return f'{name}{{child="{child}"{"," if labels else ""}{labels or ""}}} {value}'
