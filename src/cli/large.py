"""`latchwork large`: the large circular queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..errors import InvalidRequest, NotFound, QueueFull
from ..plain import word
from ..queue import Entry, LargeQueue
from .interrupts import interrupted_once
from .jsontext import from_json, to_json
from .session import Session, note

app = typer.Typer(help="A circular queue larger than a record.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="the queue")]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    capacity: Annotated[int, typer.Argument(help="the number of entries")],
    entries_per_record: Annotated[int, typer.Option(help="the number of entries in a record")] = 100,
) -> None:
    """Create a queue.

    Example: latchwork large create bus 100000
    """
    session: Session = context.obj.may_make()
    queue = LargeQueue.create(session.store, name, capacity, entries_per_record=entries_per_record)
    session.say(f"created {name} for {capacity:,} entries", **asdict(queue.info()))


@app.command()
def info(context: typer.Context, name: Name) -> None:
    """Show head, tail, size and capacity.

    Example: latchwork large info bus
    """
    session: Session = context.obj
    facts = asdict(_open(session, name).info())
    session.say(*(f"{key.replace('_', ' '):12} {value}" for key, value in facts.items()), **facts)


@app.command()
def enqueue(
    context: typer.Context,
    name: Name,
    value: Annotated[list[str], typer.Argument(help="an entry, as JSON or plain text; repeat for each")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="drop the oldest if the queue is full")] = False,
) -> None:
    """Put entries in, and print their offsets.

    Example: latchwork large enqueue bus '{"event": 7}'
    """
    session: Session = context.obj
    queue = _open(session, name)
    try:
        offsets = queue.enqueue_many([_value(text) for text in value], overwrite_if_full=overwrite)
    except QueueFull as failure:
        raise QueueFull(str(failure).replace("enqueue with overwrite_if_full=True", "give --overwrite")) from None
    session.say(*map(str, offsets), offsets=list(offsets))


@app.command()
def dequeue(
    context: typer.Context,
    name: Name,
    n: Annotated[int, typer.Option("-n", "--max", help="the largest number of messages")] = 1,
) -> None:
    """Take entries out, the oldest first, and print them. They are no longer in the queue. If the output fails, or is
    ended by Ctrl-C, SIGTERM or SIGHUP, all of them are printed to stderr. Exit code 3 if there is none to take.

    Example: latchwork large dequeue bus -n 10
    """
    session: Session = context.obj
    queue = _open(session, name)
    with interrupted_once(for_good=True):  # nobody else can get the entries any more
        if entries := queue.dequeue_many(n):
            _print_all(session, entries)
            return
    if size := queue.info().size:
        raise NotFound(
            f"the queue {name!r} gave none of its {size:,} entries: they have just come, or a consumer group holds "
            "them until it has committed them; let it read and commit, or drop it"
        )
    raise NotFound(f"the queue {name!r} is empty")


def _print_all(session: Session, entries: Sequence[Entry]) -> None:
    try:
        rows = [(entry.offset, entry.value if session.json else to_json(entry.value)) for entry in entries]
        session.table([{"offset": offset, "value": value} for offset, value in rows])
        sys.stdout.flush()  # here, as a short output fails only now
    except BaseException:  # such as a full disk, or Ctrl-C
        # The queue has handed them out, and nobody else can get them any more.
        note("the output has ended, perhaps before all was printed; the entries that were taken:")
        for entry in entries:
            print(to_json({"offset": entry.offset, "value": entry.value}), file=sys.stderr)  # noqa: T201 - see above
        raise


@app.command()
def read(context: typer.Context, name: Name, offset: Annotated[int, typer.Argument(help="the entry's offset")]) -> None:
    """Look at an entry, without a lock. Exit code 3 if the entry is not there any more, or not yet.

    Example: latchwork large read bus 42
    """
    session: Session = context.obj
    entry = _open(session, name).read_at(offset)
    if entry is None:
        raise NotFound(f"the queue {name!r} has no entry at offset {offset}")
    session.say(to_json(entry.value), offset=entry.offset, value=entry.value)


def _open(session: Session, name: str) -> LargeQueue:
    store = session.store
    try:
        return LargeQueue.open(store, name)
    except NotFound as failure:
        if "key" in failure.details:  # its metadata is there; its entries are in another store
            raise
        raise NotFound(
            f"there is no queue {name!r}; make it with `latchwork large create {word(name)} CAPACITY`"
        ) from None


def _value(text: str) -> Any:
    try:
        return from_json(text)
    except InvalidRequest:
        raise
    except ValueError:
        return text
