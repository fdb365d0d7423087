"""The actions of the console: those of `latchwork top`, each with the ticket that its confirmation carries.

A ticket is made for one person, one action with all its arguments, and ten minutes. It is what shows that the person
has seen the consequence, and that another site cannot ask for it.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ..cli.top import pages
from ..cli.top.actions import Action, redrive_all, scale, some_messages, switch
from ..cli.top.coord_actions import break_lock, count_down, step_down
from ..cli.top.pages import MESSAGES
from ..cli.top.schedule_actions import switch_schedule, trigger
from ..errors import InvalidRequest, NotFound, OutcomeUnknown, Refused
from ..observe.snapshot import QueueState, Snapshot
from ..plain import one_line
from ..queue.sharded.sides import SIDES
from ..seams import Seams
from .access import Access
from .reader import Reader

VERBS = {
    "pause": "operator", "resume": "operator", "scale": "operator", "redrive-all": "operator", "redrive": "operator",
    "discard": "operator", "move": "operator", "cancel": "operator", "deactivate": "admin",
    "activate": "admin",
    "stop": "operator", "break": "operator", "break-at-once": "operator", "count-down": "operator",
    "step-down": "operator", "trigger": "operator", "pause-schedule": "operator", "resume-schedule": "operator",
}  # fmt: skip
"""Each with the role that it needs."""
COORD: Mapping[str, str] = {
    "break": "locks", "break-at-once": "locks", "count-down": "latches", "trigger": "schedules",
    "pause-schedule": "schedules", "resume-schedule": "schedules", "step-down": "elections",
}  # fmt: skip
"""Those that are not about a queue, each with its screen."""
TAKES_MESSAGES: Mapping[str, str] = {
    "deactivate": "Publishers fail from now on. What is in it is still consumed.",
    "activate": "Publishers can use it again.",
}
"""What these actions do to a queue."""
LIFE = 600.0
"""Seconds for which a ticket is good."""
KEPT = 1_024
"""Confirmations of which it is remembered what became of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asks for. key: farm, client and queue, or farm, kind and name; ids: the messages, of `side`, or the
    party; n: the number of threads; to: the queue that they go to; run: the messages that were chosen before, all that
    matched.
    """

    verb: str
    key: tuple[str, str, str]
    side: str = ""
    ids: tuple[str, ...] = ()
    n: str = ""
    to: str = ""
    run: str = ""

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]]) -> Wanted:
        """Return what the fields of a query or a form ask for. Raises `InvalidRequest`."""
        given = dict(fields)
        ids = tuple(dict.fromkeys(value for name, value in fields if name == "id" and value))
        if given.get("verb") not in VERBS:
            raise InvalidRequest(f"there is no such action; the actions are {', '.join(VERBS)}")
        if len(ids) > MESSAGES:
            raise InvalidRequest(f"{len(ids)} messages; at most {MESSAGES} at once")
        key = given.get("farm", ""), given.get("client", ""), given.get("name", "")
        return cls(given["verb"], key, given.get("side", ""), ids, given.get("n", ""), given.get("to", ""),
                   given.get("run", ""))  # fmt: skip

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields of the form that confirms it."""
        named = {"verb": self.verb, **dict(zip(("farm", "client", "name"), self.key, strict=True))}
        named |= {"side": self.side, "n": self.n, "to": self.to, "run": self.run}
        return [*named.items(), *(("id", one) for one in self.ids)]


def action_of(reader: Reader, wanted: Wanted) -> Action | str:
    """Return the action, with its consequence now; or why it cannot be done.

    Raises `NotFound` and `InvalidRequest`.
    """
    if wanted.verb in COORD:
        return _of_coord(reader, wanted)
    there = pages.queue_in(reader, wanted.key)
    if there is None:
        raise NotFound(f"there is no queue {one_line('/'.join(wanted.key))}, or its store is away")
    taken, state = there
    if wanted.verb == "stop":
        raise NotFound("say which action to stop: its page has the button")
    if wanted.verb in {"redrive", "discard", "move", "cancel"}:
        if wanted.side not in SIDES:
            raise InvalidRequest(f"there is no such side; the sides are {', '.join(SIDES)}")
        return (
            some_messages(wanted.key, wanted.verb, wanted.side, wanted.ids, wanted.to)
            if wanted.ids
            else "no message was chosen"
        )
    return _of_queue(reader, wanted, taken, state)


def _of_schedule(reader: Reader, wanted: Wanted) -> Action | str:
    farm, client, name = wanted.key
    table = pages.schedules(reader)
    row = next((one for one in table.rows if one.key == (farm, client, "schedule", name)), None)
    if row is None:
        raise NotFound(f"there is no schedule {one_line('/'.join(wanted.key))}, or its store is away")
    if wanted.verb == "trigger":
        return trigger(row)
    if row.cells[3].startswith("PAUSED") == (wanted.verb == "pause-schedule"):
        return f"{one_line(name)} is {'paused' if wanted.verb == 'pause-schedule' else 'not paused'} already"
    return switch_schedule(row)


def _of_coord(reader: Reader, wanted: Wanted) -> Action | str:
    if COORD[wanted.verb] == "schedules":
        return _of_schedule(reader, wanted)
    table = pages.coordination(reader, COORD[wanted.verb])
    row = next((one for one in table.rows if one.key == wanted.key), None)
    if row is None:
        raise NotFound(f"there is no {one_line('/'.join(wanted.key))}, or its store is away")
    if wanted.verb == "count-down":
        return count_down(row, "".join(wanted.ids[:1]))
    if wanted.verb == "step-down":
        return step_down(row)
    return break_lock(row, at_once=wanted.verb == "break-at-once")


def _of_queue(reader: Reader, wanted: Wanted, taken: Snapshot, state: QueueState) -> Action | str:
    name = one_line(state.name)
    if wanted.verb == "scale":
        is_number = wanted.n.isascii() and wanted.n.isdigit() and len(wanted.n) < 10
        return scale(wanted.key, state, int(wanted.n)) if is_number else "give the number of threads: 0 to 100"
    if wanted.verb == "redrive-all":
        return redrive_all(wanted.key, state)
    if wanted.verb in TAKES_MESSAGES:
        done = partial(_taking, reader, wanted)
        return Action(f"{wanted.verb} {name}", TAKES_MESSAGES[wanted.verb], wanted.key, done)
    if state.paused == (wanted.verb == "pause"):
        return f"{name} is {'paused' if state.paused else 'not paused'} already"
    return switch(wanted.key, taken, state)


def _taking(reader: Reader, wanted: Wanted, *_: object) -> str:
    registry, name = pages.registry_of(reader, wanted.key), wanted.key[2]
    registry.activate(name) if wanted.verb == "activate" else registry.deactivate(name)
    return f"{wanted.verb}d {one_line(name)}"


class Tickets:
    """Makes and checks tickets. key: secret; the same in all processes that serve one console."""

    def __init__(self, key: bytes, seams: Seams) -> None:
        self._key, self._seams = key, seams

    def made(self, access: Access, wanted: Wanted, title: str) -> str:
        """Return the ticket for this person to do this."""
        until, number = int(self._seams.wall() + LIFE), self._seams.unique()
        return f"{until}.{number}.{self._mark(until, number, access, wanted, title)}"

    def holds(self, ticket: str, access: Access, wanted: Wanted, title: str) -> bool:
        """Whether this ticket was made for just that, and is not too old."""
        stated, _, rest = ticket.partition(".")
        number, _, mark = rest.partition(".")
        if not (stated.isascii() and stated.isdigit() and len(stated) < 15) or self._seams.wall() >= int(stated):
            return False
        return hmac.compare_digest(
            mark.encode("utf-8", "replace"), self._mark(int(stated), number, access, wanted, title).encode()
        )

    def _mark(self, until: int, number: str, access: Access, wanted: Wanted, title: str) -> str:
        what = json.dumps([until, number, access.name, title, wanted.fields]).encode()
        return hmac.digest(self._key, what, "sha256").hex()


Confirmed = tuple[str, str, Wanted]
"""A person, the ticket, and what it is for."""


class Answers:
    """What became of the confirmations that were sent: one that is sent twice, as by a double click or when the page is
    loaded again, is done once. Known in this process alone. Safe to share between threads.
    """

    def __init__(self, seams: Seams) -> None:
        self._lock, self._said = seams.lock(), OrderedDict[Confirmed, str]()

    def of(self, confirmed: Confirmed) -> str | None:
        """Return what became of this confirmation; None if it was not sent before."""
        with self._lock:
            return self._said.get(confirmed)

    @contextmanager
    def once(self, confirmed: Confirmed) -> Iterator[list[str]]:
        """Do it in the block, which appends what became of it. After an error it may be sent again, unless it may have
        been done.

        Raises `Refused` if another request has sent it.
        """
        with self._lock:
            if confirmed in self._said:
                raise Refused("nothing was done again: this was confirmed by another request a moment ago")
            self._said[confirmed] = "it has begun; the audit record will say how it ended"
            if len(self._said) > KEPT:
                self._said.popitem(last=False)
        said: list[str] = []
        try:
            yield said
        except OutcomeUnknown:
            said.append("it is not known whether it was done: look, then choose it again on its page")
            raise
        finally:
            with self._lock:
                if said:
                    self._said[confirmed] = said[-1]
                else:
                    self._said.pop(confirmed, None)
