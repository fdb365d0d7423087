"""What the processes of `test_crowd_killed` have written down, and what must hold of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .crowd_worker import GROUPS, SWEEP, follow_up

READERS = ("own", *GROUPS)
FAILED = {"failed": 1, "lost": 1, "slow": 1, "unknown": 1, "doubled": 2}
"""After which a message may come again, and how often."""
LONG = 10.0
"""Seconds that a leader may have moved messages for when it was killed, being stopped meanwhile."""


@dataclass
class Attempt:
    """One attempt to publish a payload: by whom, from when to when, and whether that one was told that it is safe."""

    who: str
    begun: float
    ended: float = float("inf")
    told: bool = False


class Story:
    """The log, read on as it grows. `killed`: processes that were; `stopped`: when, and until when."""

    def __init__(self, log: Path) -> None:
        self._log, self._read = log, 0
        self.killed: set[str] = set()
        self.safe: dict[str, set[str]] = defaultdict(set)
        """Ids of each payload whose publisher was told that it is safe."""
        self.into: dict[str, set[str]] = defaultdict(set)
        """Of each batch: payloads of which a publisher was told that they are in it."""
        self.made: set[str] = set()
        self.late: set[str] = set()
        self.handled: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        """By reader and id: when, and by whom."""
        self.ended: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        """By reader and id: by whom, and how."""
        self.begun: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        """By reader and id: who is about to acknowledge it, or to fail it. Whoever was killed then may have done it."""
        self.ids: dict[tuple[str, str], set[str]] = defaultdict(set)
        """By reader and payload."""
        self.payloads: dict[str, str] = {}
        """By id."""
        self.attempts: dict[str, list[Attempt]] = defaultdict(list)
        """By payload. Of one with a key, and of a follow-up, there are many."""
        self.begun_at: dict[str, tuple[float, str]] = {}
        """By id: when its publisher began, and who that is."""
        self.since: dict[str, tuple[float, str]] = {}
        """By id: when a publisher was first told that it is safe, and who that is: another where that completed it."""
        self.first: dict[tuple[str, str], float] = {}
        """When a reader was first given a payload."""
        self.moves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """When each leader moved messages; the last one may have no end."""

    def read_on(self) -> bool:
        """Take in what is new; whether a message was handled or published since."""
        before = len(self.handled), len(self.safe)
        with self._log.open() as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith("\n"):
                    break
                self._read += len(line)
                self._take_in(line.split())
        return before != (len(self.handled), len(self.safe))

    def _take_in(self, words: list[str]) -> None:
        when, word, who, whom, payload, i = words
        at, place = float(when), (whom, i)
        if word == "made":
            self.made.add(whom)
        elif word == "publishing":
            self.begun_at[i] = at, who
            self._begin(payload, who, at)
        elif word == "following":
            self._begin(payload, who, at)
        elif word == "followed":
            self._end(payload, who, at, told=True)
        elif word == "unsafe":
            self._end(payload, who, at, told=False)
            if at - self.begun_at[i][0] >= SWEEP / 2:
                self.late.add(i)
        elif word in ("published", "late"):
            self._end(payload, who, at, told=True)
            self.payloads[i] = payload
            self.safe[payload].add(i)
            self.since.setdefault(i, (at, who))
            if whom != "-":
                self.into[whom].add(payload)
            if word == "late":
                self.late.add(i)
        elif word == "handled":
            self.handled[place].append((at, who))
            self.ids[whom, payload].add(i)
            self.payloads[i] = payload
            self.first.setdefault((whom, payload), at)
        elif word in ("settling", "failing"):
            self.begun[place][who] = word
        elif word == "moving":
            self.moves[who].append((at, float("inf")))
        elif word == "moved":
            self.moves[who][-1] = (self.moves[who][-1][0], at)
        else:
            self.ended[place].append((who, word))
            self.begun[place].pop(who, None)

    def _begin(self, payload: str, who: str, at: float) -> None:
        self.attempts[payload].append(Attempt(who, at))

    def _end(self, payload: str, who: str, at: float, *, told: bool) -> None:
        mine = [one for one in self.attempts[payload] if one.who == who and one.ended == float("inf")]
        mine[-1].ended, mine[-1].told = at, told

    def waited_for(self) -> Iterator[tuple[str, str]]:
        """Each reader and payload that is not acknowledged yet, though it was published or has to follow."""
        for payload in (*self.safe, *map(follow_up, self.made)):
            for reader in READERS:
                if not any(self._may_be_done((reader, i)) for i in self.ids.get((reader, payload), ())):
                    yield reader, payload

    def _may_be_done(self, place: tuple[str, str]) -> bool:
        """Whether it is acknowledged, or was about to be by somebody who was killed, and did not come again."""
        if any(how in ("acked", "slow") for _, how in self.ended[place]):
            return True
        last = self.handled[place][-1][1]
        return last in self.killed and self.begun[place].get(last) == "settling"

    def lines_about(self, text: str) -> Iterator[str]:
        """The lines of the log that are of an id in the text, or of a leader's moves."""
        for line in self._log.read_text().splitlines():
            _, word, _, _, payload, i = line.split()
            if word in ("moving", "moved") or re.search(rf"\b({re.escape(payload)}|{re.escape(i)})\b", text):
                yield line

    # ---- what must hold

    def wrong(self) -> list[str]:
        """What was broken, in words."""
        return [line for check in (self._lost, self._twice, self._doubles, self._early) for line in islice(check(), 9)]

    def _lost(self) -> Iterator[str]:
        """Per reader nothing acknowledged is lost."""
        for reader, payload in self.waited_for():
            yield f"{payload} {sorted(self.safe.get(payload, ()))} is not acknowledged for {reader}"

    def _twice(self) -> Iterator[str]:
        """Each key of deduplication, each follow-up and each message has one id, whoever asks or reads."""
        for payload, ids in self.safe.items():
            if len(ids) > 1:
                yield f"{payload} was published as {sorted(ids)}"
        for (reader, payload), ids in self.ids.items():
            if len(ids | self.safe.get(payload, set())) > 1:
                yield f"{payload} came to {reader} as {sorted(ids)}, published as {sorted(self.safe.get(payload, ()))}"

    def _doubles(self) -> Iterator[str]:
        """A message comes again only where somebody was killed, late or failed with it."""
        for place, times in self.handled.items():
            why = self.explained(place) if len(times) > 1 else Counter[str]()
            if len(times) - 1 > why.total():
                yield f"{place} came {len(times)} times: {dict(why)}, {self.ended[place]}"
        for place, ends in self.ended.items():
            for who, how in ends:
                if how.startswith("taken"):
                    yield f"{place} was {how} from {who}"

    def explained(self, place: tuple[str, str]) -> Counter[str]:
        """Why a message may have come again, and how often."""
        why = Counter[str]()
        for _, how in self.ended[place]:
            why[how] += FAILED.get(how, 0)
        settled = Counter(who for who, _ in self.ended[place])
        had = Counter(who for _, who in self.handled[place])
        why["killed"] = sum((had - settled)[who] for who in self.killed)
        # It may be stored for later, and here still.
        why["killed as it failed it"] = sum(self.begun[place].get(who) == "failing" for who in self.killed)
        why["published late"] = place[1] in self.late
        why["published by one that died, or by several"] = self._published_again(place[1])
        first, last = self.handled[place][0][0], self.handled[place][-1][0]
        safe, _ = self.since.get(place[1], (first, ""))
        why["a leader killed or slow"] = self._moves_broken(min(first, safe) - SWEEP, last)
        return +why

    def _published_again(self, i: str) -> bool:
        """Whether its publisher was killed before it was told; or several were at work on the message, and a sweep had
        run since it was begun, which may have passed its slot for a group (P17.10).
        """
        attempts = self.attempts[self.payloads[i]]
        if not attempts:
            return False
        begun, publisher = self.begun_at.get(i, (attempts[0].begun, attempts[0].who))
        told = min((one.ended for one in attempts if one.told and one.ended >= begun), default=float("inf"))
        if told == float("inf"):
            return publisher in self.killed
        several = sum(one.begun <= told and begun <= one.ended for one in attempts) > 1
        return several and any(at < told and begun < end for moves in self.moves.values() for at, end in moves)

    def _moves_broken(self, since: float, until: float) -> int:
        """Leaders that were killed, or stopped for a sweep duration, while they moved messages at that time."""
        return sum(
            begun < until and (since < end and end - begun >= SWEEP if end < float("inf") else who in self.killed)
            for who, moves in self.moves.items()
            for begun, end in moves
            if begun > since - LONG
        )

    def _early(self) -> Iterator[str]:
        """Nothing follows on a batch before all of it has been handled."""
        for batch, payloads in self.into.items():
            followed = self.first.get(("own", follow_up(batch)), float("inf"))
            early = [one for one in payloads if self.first.get(("own", one), float("inf")) > followed]
            if early:
                yield f"batch {batch} ended before {early[:9]} of it were handled"

    def figures(self) -> dict[str, int]:
        """For the table."""
        again = {place: len(times) - 1 for place, times in self.handled.items() if len(times) > 1}
        own = {place: n for place, n in again.items() if set(self.explained(place)) == {"a leader killed or slow"}}
        return {
            "published": len(self.safe), "keys": sum("." in one and not one[0].isdigit() for one in self.safe),
            "handled": sum(map(len, self.handled.values())), "batches": len(self.made),
            "again": sum(again.values()), "again by a leader": sum(own.values()),
        }  # fmt: skip
