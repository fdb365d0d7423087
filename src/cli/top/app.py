"""The state of the screen: the page, the chosen row, the question; keys go in, lines come out. No terminal here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from textwrap import wrap

from rich.cells import set_cell_size

from ...plain import one_line, shown_time
from ...queue.sharded.sides import SIDES
from ...queue.sharded.slots import Slot
from ..audit import person
from ..bulk import Run
from . import pages
from .actions import Action, of_all, redrive_all, refusal_of, run_of_filter, scale, some_messages, switch
from .coord_actions import break_lock, count_down, step_down
from .feed import PATIENCE, Feed
from .schedule_actions import switch_schedule, trigger
from .table import BAD, BARS, CHOSEN, FAINT, TITLE, WARN, Line, Row, Table

KEYS = "1234567890"
VERBS = {"r": "redrive", "d": "discard", "x": "cancel"}
PAGES = (
    "overview", "queues", "workers", "latches", "locks", "elections", "semaphores", "schedules", "farms", "streams",
    "outboxes",
)  # fmt: skip
"""The pages, by the number of their key; 0 is the tenth, and Tab leads to all."""
LEAST_ROWS = 4
"""Rows that are shown whatever notes stand above them."""
HELP = """\
1 to 9, 0       the pages; Tab the next one
up down         choose a row; PgUp PgDn Home End
Enter           a queue: open it; Esc or Backspace: back
F4 or /         filter the rows; Esc ends it
F6 or <  >      sort by another column; I turns the order round
Space           look again now

a queue:        p pauses or resumes it;  c + - the threads in each worker
                r redrives what is parked;  m its messages
                h history of a day, or of two weeks
messages:       s the next side;  n goes on where there are more
                F3 or i looks an id up in all sides
                r d x m redrive, discard, cancel, move the chosen one
                R D X M all that match the filter;  S stops that
locks:          b breaks the chosen one, B at once
elections:      d lets the leader step down;  latches: c counts a party down
schedules:      t runs the chosen one now, p pauses or resumes it

F1 or ?         this page
F10 or q        quit; Ctrl-C too
Each action first says what it does, and is done only after y."""


@dataclass(slots=True)
class Page:
    """A page, and how a person has set it."""

    name: str
    key: tuple[str, ...] = ()
    chosen: tuple[str, ...] | None = None
    sort: int | None = None
    down: bool = True
    filter: str = ""
    side: str = "parked"
    wanted: str = ""
    days: float = 1.0
    skipped: int = 0
    after: Slot | None = None

    @property
    def messages(self) -> pages.MessagePage:
        """The page of messages that this is."""
        return pages.MessagePage(self.key, self.side, self.wanted, after=self.after)


@dataclass(slots=True)
class Prompt:
    """A line that a person types. what: what the line is for."""

    what: str
    text: str = ""


@dataclass(slots=True)
class Top:
    """The screen. bars: the characters that charts are drawn with."""

    feed: Feed
    bars: str = BARS
    stack: list[Page] = field(default_factory=lambda: [Page("overview")])
    prompt: Prompt | None = None
    asking: Action | None = None
    said: Line | None = None
    helps: bool = False
    run: Run | None = None
    """The action on all that match which was chosen last."""
    _shown: Table | None = None
    _columns: list[int] = field(default_factory=list)
    _room: int = 10

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self.stack[-1]

    # ---- keys

    def press(self, key: str) -> bool:
        """Do what a key asks for; False: end."""
        self.said, self.feed.said = None, ""
        if self.asking is not None:
            self._answer(key)
        elif self.prompt is not None:
            self._type(key, self.prompt)
        elif key in {"q", "f10"}:
            return False
        elif self.helps or key in {"?", "f1"}:
            self.helps = not self.helps
        elif key == "S" and self.run is not None and self.is_running:
            self.run.stop(person())
        else:
            self._command(key)
        return True

    def _answer(self, key: str) -> None:
        action, self.asking = self.asking, None
        if action is None:
            return
        if key in {"y", "Y"} and self.run is not None and not self.run.has_begun:
            self.run.has_begun = True
            self.stack.append(Page("run"))
            self.feed.act_aside(partial(action.do, self.feed, person()))
        elif key in {"y", "Y"}:
            self.feed.act(partial(action.do, self.feed, person()))
        else:
            self.run = self.run if self.is_running else None
            self.said = Line(f"not done: {action.title}")

    @property
    def is_running(self) -> bool:
        """Whether an action on many messages goes on."""
        return self.run is not None and self.run.has_begun and not self.run.is_over

    def _type(self, key: str, prompt: Prompt) -> None:
        if key == "enter":
            self.prompt = None
            self._typed(prompt)
        elif key == "esc":
            self.prompt = None
            if prompt.what == "filter":
                self.page.filter = ""
        elif key == "backspace":
            prompt.text = prompt.text[:-1]
        elif len(key) == 1:
            prompt.text += key
        if prompt.what == "filter" and self.prompt is not None:
            self.page.filter = prompt.text

    def _typed(self, prompt: Prompt) -> None:
        if prompt.what == "id":
            self.page.wanted = prompt.text.strip()
        elif prompt.what == "to" and self.page.chosen:
            side, message = self.page.chosen
            self._ask(some_messages(self.page.key, "move", side, [message], prompt.text.strip()))
        elif prompt.what == "all to":
            self._choose("move", prompt.text.strip())
        elif prompt.what == "party":
            row = self._chosen_row()
            if row is not None:
                self._ask(count_down(row, prompt.text.strip()))
        elif prompt.what == "threads":
            text = prompt.text.strip()
            if text.isascii() and text.isdigit() and len(text) < 10:
                self._scale(int(text))
            else:
                self.said = Line(f"{one_line(text)!r} is no number of threads", WARN)

    def _command(self, key: str) -> None:
        page = self.page
        if key in KEYS:
            self.stack = [Page(PAGES[KEYS.index(key)])]
        elif key == "tab":
            self.stack = [Page(PAGES[(PAGES.index(self.stack[0].name) + 1) % len(PAGES)])]
        elif key in {"esc", "backspace", "left"}:
            self._back()
        elif key in {"up", "down", "pgup", "pgdn", "home", "end"}:
            self._move(key)
        elif key in {"enter", "right"}:
            self._open()
        elif key in {"/", "f4"}:
            self.prompt = Prompt("filter", page.filter)
        elif key in {"<", ">", "f6"}:
            self._sort(-1 if key == "<" else 1)
        elif key == "I":
            page.down = not page.down
        elif key == " ":
            self.feed.forget()
            self.feed.look_now()
        elif page.name == "messages":
            self._message_key(key)
        elif page.name in {"locks", "latches", "elections", "schedules"}:
            self._row_key(key)
        else:
            self._queue_key(key)

    def _back(self) -> None:
        page = self.page
        if page.filter or page.wanted or page.after:
            page.filter, page.wanted, page.after = "", "", None
        elif len(self.stack) > 1:
            self.stack.pop()
        elif page.name != PAGES[0]:
            self.stack = [Page(PAGES[0])]

    def _open(self) -> None:
        chosen = self.page.chosen
        if self.page.name == "queues" and chosen:
            self.stack.append(Page("queue", chosen))
        elif self.page.name == "overview" and chosen:
            self.stack.append(Page("queues", filter=""))
        elif self.page.name in {"workers", "streams"} and chosen:
            self.stack.append(Page("queue", chosen[:3]))

    def _move(self, key: str) -> None:
        page, table = self.page, self._shown
        if table is None:
            return
        if key in {"pgup", "pgdn"} and (page.skipped or len(table.notes) > self._room - LEAST_ROWS):
            page.skipped = max(0, page.skipped + (self._room // 2 if key == "pgdn" else -(self._room // 2)))
            page.skipped = min(page.skipped, max(0, len(table.notes) - 1))
            return
        rows = [one for one in table.rows if one.key is not None]
        if not rows:
            return
        keys = [one.key for one in rows]
        at = keys.index(page.chosen) if page.chosen in keys else 0
        step = {"up": -1, "down": 1, "pgup": -self._room, "pgdn": self._room, "home": -len(rows), "end": len(rows)}[key]
        page.chosen = keys[max(0, min(len(rows) - 1, at + step))]

    def _sort(self, step: int) -> None:
        if self._shown is not None and self._columns:
            page, there = self.page, self._columns
            at = there.index(page.sort) + step if page.sort in there else (0 if step > 0 else -1)
            page.sort = there[at % len(there)]
            page.down = self._shown.columns[page.sort].right

    def _queue_key(self, key: str) -> None:
        place = self.page.key if self.page.name == "queue" else self.page.chosen if self.page.name == "queues" else None
        there = pages.queue_in(self.feed, place) if place else None
        if place is None or there is None:
            return
        taken, state = there
        if key == "p":
            self.asking = switch(place, taken, state)
        elif key == "c":
            self.prompt = Prompt("threads")
        elif key in {"+", "-"}:
            self._scale(state.live.concurrency + (1 if key == "+" else -1))
        elif key == "r":
            self._ask(redrive_all(place, state))
        elif key == "m":
            side = next((one for one in ("parked", "sideline") if getattr(state.stats, one).waiting), "delayed")
            self.stack.append(
                Page("messages", place, side=side if state.stats.depth.delayed or side != "delayed" else "ready")
            )
        elif key == "h":
            self.page.days = 14.0 if self.page.days == 1.0 else 1.0

    def _scale(self, threads: int) -> None:
        place = self.page.key if self.page.name == "queue" else self.page.chosen
        there = pages.queue_in(self.feed, place) if place else None
        if place and there:
            self._ask(scale(place, there[1], threads))

    def _message_key(self, key: str) -> None:
        page = self.page
        if key == "s":
            page.side, page.wanted, page.after = SIDES[(SIDES.index(page.side) + 1) % len(SIDES)], "", None
        elif key == "n":
            found = page.messages.fetched(self.feed).value
            page.after = found.after if found else page.after
        elif key in {"i", "f3"}:
            self.prompt = Prompt("id")
        elif key in {"m", "M"} and (page.chosen or key == "M"):
            self.prompt = Prompt("to" if key == "m" else "all to")
        elif key in {"r", "d", "x"} and page.chosen:
            side, message = page.chosen
            self._ask(some_messages(page.key, VERBS[key], side, [message]))
        elif key in {"R", "D", "X"}:
            self._choose(VERBS[key.lower()])

    def _choose(self, verb: str, to: str = "") -> None:
        """Choose all that match in the background; once they are known, it is asked."""
        page, feed = self.page, self.feed
        key, side, text = page.key, page.side, page.filter
        if self.is_running:
            self.said = Line("another one goes on: S stops it", WARN)
        elif page.wanted:
            self.said = Line("this is of one side: Esc leaves the look-up", WARN)
        elif refusal := refusal_of(verb, side, to):
            self.said = Line(refusal, WARN)
        else:
            self.said = Line("choosing ...")
            feed.choose(lambda: (key, run_of_filter(pages.handle_of(feed, key), verb, side, text, to)))

    def _take_chosen(self) -> None:
        if self.asking is not None or self.prompt is not None:  # a person answers what was asked first
            return
        found = self.feed.take_chosen()
        if found is None or self.page.name != "messages":
            return
        if found.failure:
            self.said = Line(f"FAILED: {found.failure}", BAD)
            return
        key, run = found.value
        if key != self.page.key:  # another queue is open by now
            return
        action = of_all(key, run)
        if isinstance(action, Action):  # else there is nothing to run, and no answer to wait for
            self.run = run
        self._ask(action)

    def _row_key(self, key: str) -> None:
        row = self._chosen_row()
        if row is None:
            return
        if self.page.name == "schedules" and key in {"t", "p"}:
            self._ask(trigger(row) if key == "t" else switch_schedule(row))
        elif self.page.name == "locks" and key in {"b", "B"}:
            self._ask(break_lock(row, at_once=key == "B"))
        elif self.page.name == "elections" and key == "d":
            self._ask(step_down(row))
        elif self.page.name == "latches" and key == "c":
            self.prompt = Prompt("party")

    def _chosen_row(self) -> Row | None:
        rows = self._shown.rows if self._shown else ()
        return next((one for one in rows if one.key is not None and one.key == self.page.chosen), None)

    def _ask(self, action: Action | str) -> None:
        if isinstance(action, Action):
            self.asking = action
        else:
            self.said = Line(action, WARN)

    # ---- lines

    def screen(self, width: int, height: int) -> list[Line]:
        """Return the lines of the whole screen, at most so many, none wider."""
        self._take_chosen()
        top = [*self._head(width), Line("")]
        end = self._foot(width)
        self._room = max(1, height - len(top) - len(end))
        body = [Line(line) for line in HELP.splitlines()] if self.helps else self._body(width, self._room)
        body = body[: self._room]
        lines = [*top, *body, *[Line("")] * (self._room - len(body)), *end]
        return [Line(set_cell_size(one.text, width).rstrip(), one.style) for one in lines[:height]]

    def _head(self, width: int) -> list[Line]:
        now = f"latchwork top: {pages.summary(self.feed)}, figures of {pages.oldest(self.feed)} ago"
        state = Line(now, TITLE)
        if self.feed.found is None:
            state = Line("latchwork top: the store is asked for the first time", TITLE)
        away = [one for one in self.feed.found.clients if one.away] if self.feed.found else []
        if self.feed.failure:
            state = Line(f"NO FIGURES: {one_line(self.feed.failure)}", BAD)
        elif self.feed.silent > PATIENCE:
            silent = shown_time(self.feed.silent)
            state = Line(f"THE STORE DOES NOT ANSWER for {silent}; figures of {pages.oldest(self.feed)} ago", BAD)
        elif away:
            names = ", ".join(dict.fromkeys(one.farm for one in away))
            why = one_line(away[0].away or "")
            state = Line(f"THE STORE OF {names} IS AWAY; figures of {pages.oldest(self.feed)} ago: {why}", BAD)
        here = self.stack[0].name
        numbers = [*KEYS, *" " * len(PAGES)]
        for letters in (99, 5, 3):  # as many of each name as fit
            shown = [name if name == here else name[:letters] for name in PAGES]
            words = [f"{number} {name}".strip() for number, name in zip(numbers, shown, strict=False)]
            tabs = " ".join(f"[{one}]" if PAGES[n] == here else one for n, one in enumerate(words))
            if len(tabs) <= width:
                break
        return [state, Line(tabs), Line(self._where(), FAINT)]

    def _where(self) -> str:
        page = self.page
        words = [page.name]
        if page.key:
            words.append(" / ".join(one_line(one) for one in page.key))
        if page.name == "messages":
            words.append(f"id {one_line(page.wanted)}, in all sides" if page.wanted else page.side)
        if page.filter:
            words.append(f"with {one_line(page.filter)!r}")
        return ": ".join(words[:2]) + "".join(f", {word}" for word in words[2:])

    def _foot(self, width: int) -> list[Line]:
        if self.asking is not None:
            lines = wrap(self.asking.consequence, max(20, width - 2)) or [""]
            question = f"{self.asking.title}? y: yes, any other key: no"
            return [Line(""), *[Line(f"  {line}", WARN) for line in lines], Line(question, CHOSEN)]
        if self.prompt is not None:
            names = {
                "filter": "filter",
                "id": "message id",
                "party": "the party that is done",
                "to": "the queue that it goes to",
                "all to": "the queue that all that match go to",
                "threads": "threads in each worker (0 to 100)",
            }
            return [Line(""), Line(f"{names[self.prompt.what]}: {one_line(self.prompt.text)}_", CHOSEN)]
        said = self.said or (Line("being done ...") if self.feed.is_acting else Line(self.feed.said))
        if self.run is not None and self.is_running:
            said = Line(f"S stops it: {self.run.said}", WARN)
        if said.text.startswith(("FAILED", "UNKNOWN")):
            said = Line(said.text, BAD)
        keys = {
            "queue": "p pause/resume  c threads  r redrive  m messages  h history  Esc back  ? help",
            "messages": "s side  / filter  i id  r redrive  d discard  m move  R D M all  Esc back  ? help",
            "locks": "Tab next  / filter  > sort  b break  B break at once  ? help  q quit",
            "elections": "Tab next  / filter  > sort  d let the leader step down  ? help  q quit",
            "schedules": "Tab next  / filter  > sort  t run it now  p pause/resume  ? help  q quit",
            "latches": "Tab next  / filter  > sort  c count a party down  ? help  q quit",
            "queues": "Enter open  > sort  / filter  p pause/resume  m messages  ? help  q quit",
        }.get(self.page.name, "Tab next  / filter  > sort  Enter open  ? help  q quit")
        return [said, Line(keys, FAINT)]

    def _body(self, width: int, room: int) -> list[Line]:
        page = self.page
        table = self._table(width).matching(page.filter)
        if page.sort is not None and page.sort < len(table.columns):
            table = table.sorted_by(page.sort, down=page.down)
        self._shown, self._columns = table, table.shown(width)
        titles, rows = table.lines(width, page.sort)
        keys = [one.key for one in table.rows]
        if page.chosen not in keys:
            page.chosen = next((key for key in keys if key is not None), None)
        least = min(len(rows), LEAST_ROWS) + 1
        notes = self._notes(table, room - least)
        left = room - len(notes) - 1
        at = keys.index(page.chosen) if page.chosen in keys else 0
        first = max(0, min(at - left // 2, len(rows) - left))
        shown = [
            Line(line.text, CHOSEN) if one is not None and one == page.chosen else line
            for line, one in zip(rows, keys, strict=True)
        ]
        return [*notes, titles, *(shown[first : first + max(1, left)] or [Line(table.empty, FAINT)])]

    def _notes(self, table: Table, room: int) -> list[Line]:
        notes = list(table.notes)
        if len(notes) <= room:
            self.page.skipped = 0
            return notes
        notes = notes[self.page.skipped :]
        if len(notes) <= room:
            return notes
        return [*notes[: max(0, room - 1)], Line(f"... {len(notes) - max(0, room - 1)} more lines: PgDn", FAINT)]

    def _table(self, width: int) -> Table:
        page, feed = self.page, self.feed
        if page.name == "queue":
            return pages.queue(feed, page.key, width, self.bars, days=page.days)
        if page.name == "messages":
            return page.messages.table(feed)
        if page.name == "run":
            return pages.outcomes(self.run.rows() if self.run else (), self.run.said if self.run else "")
        if page.name in pages.COORD:
            return pages.coordination(feed, page.name)
        others = {
            "workers": pages.workers, "schedules": pages.schedules, "farms": pages.farms, "streams": pages.streams,
            "outboxes": pages.outboxes,
        }  # fmt: skip
        if page.name in others:
            return others[page.name](feed)
        return pages.overview(feed, width) if page.name == "overview" else pages.queues(feed, self.bars)
