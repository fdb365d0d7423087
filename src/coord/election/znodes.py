"""The line in which ZooKeeper's candidates stand: ephemeral, numbered nodes, the first of which leads
(docs/protocols.md P3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss, KazooException, NoNodeError

from ...errors import InvalidRequest, Refused, Unavailable
from ...inputs import checked_text
from ...seams import Seams


def line_path(path: str, name: str) -> str:
    """Where the line of that name stands. Raises `InvalidRequest` for what is no path in ZooKeeper."""
    if not checked_text("path", path).startswith("/") or path != "/" + path.strip("/"):
        raise InvalidRequest(f"path is {path!r}; it must begin with / and not end with it")
    whole = f"{path}/{quote(name, safe='')}"
    if not {".", ".."}.isdisjoint(whole.split("/")):
        raise InvalidRequest(f"name is {name!r} and path is {path!r}; ZooKeeper keeps nothing under '.' or '..'")
    return whole


class Line:
    """A candidate's place in the line: one ephemeral, numbered node, known by a prefix that was minted before it.

    Each stay in the line has its own number, which is part of the prefix: who ends one stay never ends the next.
    All prefixes begin alike, so that a node which was left, or was made too late, in a session that it was not meant
    for, is known and goes: it would stand in the line for nobody, for as long as that session lives.
    """

    def __init__(self, client: Any, path: str, candidate: str, seams: Seams, patience: float) -> None:
        self.client, self._path, self._candidate = client, path, candidate
        self._patience = patience
        self._mine = f"{seams.unique()}-"
        self._guard, self.stay = seams.lock(), 0

    def predecessor(self) -> str | None:
        """The node right before this candidate's, which enters the line if it is not in it; None if it is first."""
        nodes, mine = self._places()
        if not mine:
            node, data = f"{self._path}/{self._prefix()}", self._candidate.encode()
            made = self.client.create_async(node, data, ephemeral=True, sequence=True, makepath=True)
            made.rawlink(self._made)
            self._ask(made)
            nodes, mine = self._places()
        if not mine:
            raise Unavailable(f"the line {self._path} in ZooKeeper vanished while entering it; it is entered again")
        place = nodes.index(mine[0])
        return nodes[place - 1] if place else None

    def watch(self, node: str, wake: Callable[[Any], None]) -> bool:
        """Be told when the node goes; whether it is still there."""
        return self._ask(self.client.exists_async(f"{self._path}/{node}", watch=wake)) is not None

    def confirm(self) -> None:
        """Raises `Refused` where this candidate is not first any more, `Unavailable` where that cannot be said."""
        nodes, mine = self._places()
        if not mine or nodes[0] != mine[0]:
            raise Refused(f"{self._candidate!r} is not the first in {self._path} any more: its session has ended")

    def leave(self, stay: int | None = None) -> None:
        """End that stay, or the present one; nothing happens where another one has begun. Waits for nothing.

        The node goes now. Where there is no connection, it goes with the next one, or with the session.
        """
        with self._guard:
            if stay is None or stay == self.stay:
                self.stay += 1
        self._clear()

    def names(self) -> list[str]:
        """The candidates in the line, in their order."""
        asked = [self.client.get_async(f"{self._path}/{node}") for node in self._nodes()]
        names = []
        for answer in asked:
            try:
                names.append(self._ask(answer)[0].decode())
            except NoNodeError:
                continue
        return names

    def _places(self) -> tuple[list[str], list[str]]:
        """All nodes of the line, and this candidate's, in order.

        A new session, and a new stay, begins with a new prefix: the old node, where it is still there, goes with the
        old session, or by our hand. It may be of this session: the client sends what waited while there was none.
        """
        nodes, prefix = self._nodes(), self._prefix()
        old = [node for node in nodes if node.startswith(self._mine) and not node.startswith(prefix)]
        for node in old:
            self._delete(node)
        nodes = [node for node in nodes if node not in old]
        return nodes, [node for node in nodes if node.startswith(prefix)]

    def _prefix(self) -> str:
        known = self.client.client_id
        if known is None:
            raise Unavailable(f"the connection to ZooKeeper was lost while looking at {self._path}")
        return f"{self._mine}{self.stay}-{known[0]:x}-"

    def _delete(self, node: str) -> None:
        try:
            self._ask(self.client.delete_async(f"{self._path}/{node}"))
        except NoNodeError:
            return

    # Nothing from here to `_heard` waits: kazoo's own threads call it.

    def _clear(self) -> None:
        """Have the nodes deleted that this candidate has left."""
        self.client.get_children_async(self._path).rawlink(self._found)

    def _found(self, asked: Any) -> None:
        if not asked.successful():
            self._ended(asked)
            return
        present = f"{self._mine}{self.stay}-"
        for node in asked.value:
            if node.startswith(self._mine) and not node.startswith(present):
                self.client.delete_async(f"{self._path}/{node}").rawlink(self._ended)

    def _made(self, asked: Any) -> None:
        """Where kazoo makes the path first, it sends the create later, perhaps after the stay that it was for."""
        if not asked.successful():
            self._ended(asked)
        elif not asked.value.rpartition("/")[2].startswith(f"{self._mine}{self.stay}-"):
            self._clear()

    def _ended(self, asked: Any) -> None:
        """What was cut short by the end of a connection is asked again; after the end of the session it is done."""
        if isinstance(asked.exception, ConnectionLoss) and self.client.state != KazooState.LOST:
            self.client.add_listener(self._heard)
            if self.client.connected:  # again, and perhaps before there was a listener
                self._clear()

    def _heard(self, state: str) -> bool:
        """Whether nothing has to be heard any more: kazoo then forgets this listener."""
        if state == KazooState.CONNECTED:
            self._clear()
        return bool(state != KazooState.SUSPENDED)

    def _nodes(self) -> list[str]:
        try:
            nodes = self._ask(self.client.get_children_async(self._path))
        except NoNodeError:
            return []
        return sorted((node for node in nodes if _number(node).isdigit()), key=_number)

    def _ask(self, asked: Any) -> Any:
        try:
            return asked.get(timeout=self._patience)
        except NoNodeError:
            raise
        except (KazooException, self.client.handler.timeout_exception) as failure:
            raise Unavailable(f"ZooKeeper did not answer about {self._path}: {failure!r}; it is asked again") from None


def _number(node: str) -> str:
    """The ten digits that ZooKeeper has put behind the prefix."""
    return node.rpartition("-")[2]
