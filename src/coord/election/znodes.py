"""The line of candidates in ZooKeeper: ephemeral, numbered nodes, the first of which leads (docs/protocols P3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, ConnectionLoss, KazooException, NoNodeError

from ...errors import Corrupt, InvalidRequest, Refused, Unavailable
from ...inputs import checked_text, whole_of
from ...plain import shown
from ...seams import Seams

MAX_EPOCH = 2**59
"""The largest epoch that is taken over from another farm or from ZooKeeper. Epochs begin as microseconds since 1970,
which come to it in 18,000 years; and a larger number is a damaged one, as a flipped bit makes it."""


def line_path(path: str, name: str) -> str:
    """Return the path of an election's line. Raises `InvalidRequest` if it is not a valid path in ZooKeeper."""
    if not checked_text("path", path).startswith("/") or path != "/" + path.strip("/"):
        raise InvalidRequest(f"path is {shown(path)}; it must begin with / and not end with it")
    whole = f"{path}/{quote(name, safe='')}"
    if not {".", ".."}.isdisjoint(whole.split("/")):
        raise InvalidRequest(
            f"name is {shown(name)} and path is {shown(path)}; ZooKeeper keeps nothing under '.' or '..'"
        )
    return whole


class CandidateNode:
    """A candidate's place in the line: one ephemeral, numbered node, found by a prefix chosen before it is created.

    Each stay in the line has a number of its own, which is part of the prefix: so ending one stay never ends the next.
    All prefixes of a candidate begin alike. So it finds and deletes a node that it has left, or that was created too
    late or in a later session than intended: such a node would block the line for as long as its session lives.
    """

    def __init__(self, client: Any, path: str, candidate: str, seams: Seams, patience: float) -> None:
        self.client, self._path, self._candidate = client, path, candidate
        self._patience = patience
        self._mine = f"{seams.unique()}-"
        self._guard, self.stay = seams.lock(), 0

    def predecessor(self) -> str | None:
        """Enter the line if this candidate is not in it, and return the node before its own; None if it is first."""
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
        """Call `wake` when the node is deleted. False if the node does not exist any more."""
        return self._ask(self.client.exists_async(f"{self._path}/{node}", watch=wake)) is not None

    def confirm(self) -> None:
        """Raise `Refused` if this candidate is not first any more, `Unavailable` if ZooKeeper does not answer."""
        nodes, mine = self._places()
        if not mine or nodes[0] != mine[0]:
            raise Refused(f"{self._candidate!r} is not the first in {self._path} any more: its session has ended")

    def kept(self) -> tuple[int, int]:
        """Return the epoch that the line's parent node keeps, 0 if it has none, and the version of that node.

        Raises `Unavailable`, and `Corrupt` if the node holds something else.
        """
        try:
            data, stat = self._ask(self.client.get_async(self._path))
        except NoNodeError:
            raise Unavailable(f"the line {self._path} in ZooKeeper vanished; it is entered again") from None
        epoch = whole_of(data.decode("latin-1")) if data else 0
        if epoch is None or epoch > MAX_EPOCH:
            raise Corrupt(f"{self._path} in ZooKeeper holds {data[:40]!r}, which is not an epoch: delete the node")
        return epoch, int(stat.version)

    def keep(self, epoch: int, version: int) -> None:
        """Keep this epoch. Raises `Refused` if the node has another version: another candidate was first meanwhile."""
        try:
            self._ask(self.client.set_async(self._path, str(epoch).encode(), version=version))
        except (BadVersionError, NoNodeError):
            raise Refused(f"another epoch of {self._path} was kept meanwhile, or the line has vanished") from None

    def leave(self, stay: int | None = None) -> None:
        """End the stay with this number, default: the present one. Nothing happens if another stay has begun.

        Does not wait. The node is deleted now; without a connection, it is deleted with the next one, or it ends with
        the session.
        """
        with self._guard:
            if stay is None or stay == self.stay:
                self.stay += 1
        self._clear()

    def names(self) -> list[str]:
        """Return the names of the candidates in the line, in order."""
        asked = [self.client.get_async(f"{self._path}/{node}") for node in self._nodes()]
        names = []
        for answer in asked:
            try:
                names.append(self._ask(answer)[0].decode())
            except NoNodeError:
                continue
        return names

    def _places(self) -> tuple[list[str], list[str]]:
        """Return all nodes of the line, and this candidate's, in order.

        Each session and each stay has a prefix of its own. An old node of this candidate is deleted here: it may belong
        to the present session, as the client sends waiting requests only after it has connected.
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
            raise Unavailable(f"the connection to ZooKeeper was lost while looking at {self._path}; it is asked again")
        return f"{self._mine}{self.stay}-{known[0]:x}-"

    def _delete(self, node: str) -> None:
        try:
            self._ask(self.client.delete_async(f"{self._path}/{node}"))
        except NoNodeError:
            return

    # kazoo's own threads call the methods from here to `_on_state`: none of them may wait.

    def _clear(self) -> None:
        """Delete the nodes of this candidate's earlier stays. Does not wait."""
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
        """Delete the new node if its stay is over: if kazoo first creates the path, it creates the node only later."""
        if not asked.successful():
            self._ended(asked)
        elif not asked.value.rpartition("/")[2].startswith(f"{self._mine}{self.stay}-"):
            self._clear()

    def _ended(self, asked: Any) -> None:
        """Repeat a deletion that failed as the connection ended. If the session ended too, its nodes are gone."""
        if isinstance(asked.exception, ConnectionLoss) and self.client.state != KazooState.LOST:
            self.client.add_listener(self._on_state)
            if self.client.connected:  # connected again, perhaps before the listener was added
                self._clear()

    def _on_state(self, state: str) -> bool:
        """Delete old nodes once connected. True if the listener is no longer needed: kazoo then removes it."""
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
        except (NoNodeError, BadVersionError):
            raise
        except (KazooException, self.client.handler.timeout_exception) as failure:
            raise Unavailable(f"ZooKeeper did not answer about {self._path}: {failure!r}; it is asked again") from None


def _number(node: str) -> str:
    """Return the ten digits that ZooKeeper has appended to the prefix."""
    return node.rpartition("-")[2]
