"""Every command over every bin of every kind of record, damaged: no traceback, a plain line, and never "usage".

As `test_stored_state` does with every verb. A command that cannot read what it needs exits with 1 and says so in one
line; what it was not asked for it shows as ever.
"""

from __future__ import annotations

import io
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from random import Random
from unittest import mock

import pytest

from latchwork.cli import main
from latchwork.cli.coord import group, leader, lock, rwlock, semaphore
from latchwork.cli.session import Session
from latchwork.plain import one_line
from latchwork.store import Key
from tests.cli.commands import command_names
from tests.support import matrix
from tests.support.scale import FIRST, scaled

from .public_api import Waits, with_place
from .test_stored_state import SECRET, Full, damage_one, neighbours_lost

DAMAGES = scaled(40)
MOST = 6
"""Commands over one damaged record, of those that look at it."""
CLIENT, RUN = ("--client", "c"), ("--timeout", "0.2", "--", "true")
SIDE = (*CLIENT, "--side", "sideline")
COMMANDS = {
    "stats": (
        *CLIENT, "--group", "group", "--semaphore", "semaphore", "--rwlock", "rwlock", "--barrier", "barrier",
        "--limiter", "limiter",
    ),
    "top": ("--json", *CLIENT),
    "doctor": (
        *CLIENT, "--group", "group", "--semaphore", "semaphore", "--rwlock", "rwlock", "--barrier", "barrier",
        "--limiter", "limiter",
    ),
    "audit": (),
    "latch create": ("latch", *CLIENT, "--count", "2", "--if-absent"),
    "latch count-down": ("latch", *CLIENT, "--party", "b"),
    "latch wait": ("latch", *CLIENT, "--timeout", "0.2"),
    "latch show": ("latch", *CLIENT),
    "latch list": CLIENT,
    "latch delete": ("latch", *CLIENT),
    "barrier wait": ("barrier", *CLIENT, "--party", "a", "--as", "a", "--timeout", "0.2"),
    "barrier show": ("barrier", *CLIENT, "--party", "a"),
    "barrier abort": ("barrier", *CLIENT, "--party", "a", "--reason", "r"),
    "lock run": ("lock", *RUN),
    "lock show": ("lock",),
    "lock break": ("lock", "--fence", "1"),
    "lock list": (),
    "group members": ("group",),
    "group watch": ("group", "--timeout", "0.2"),
    "group run": ("group", "--as", "n", "--", "true"),
    "semaphore run": ("semaphore", "--permits", "3", *RUN),
    "semaphore show": ("semaphore",),
    "semaphore resize": ("semaphore", "4"),
    "rwlock read": ("rwlock", *RUN),
    "rwlock write": ("rwlock", *RUN),
    "rwlock show": ("rwlock",),
    "rwlock clear": ("rwlock", "--fence", "1", "--timeout", "0.2"),
    "limit try": ("limiter", "--limit", "5", "--per", "1"),
    "limit wait": ("limiter", "--limit", "5", "--per", "1", "--timeout", "0.2"),
    "leader status": ("election",),
    "leader run": ("election", *RUN),
    "leader step-down": ("election", "--epoch", "1"),
    "queue list": CLIENT,
    "queue create": ("q", *CLIENT, "--shards", "2", "--shovel-seconds", "10"),
    "queue stats": ("q", *CLIENT),
    "queue pause": ("q", *CLIENT),
    "queue resume": ("q", *CLIENT),
    "queue scale": ("q", "2", *CLIENT),
    "queue show": ("q", *CLIENT, "--id", "later"),
    "queue cancel": ("q", *CLIENT, "--id", "later"),
    "queue recover": ("q", *CLIENT),
    "queue result": ("q", *CLIENT, "--id", "later"),
    "queue set": ("other", *CLIENT, "--retry"),
    "queue shovel": ("q", *CLIENT),
    "queue sweep": (*CLIENT, "--timeout", "0.2"),
    "queue wait": ("q", *CLIENT, "--depth", "1", "--timeout", "0.2"),
    "queue deactivate": ("other", *CLIENT, "--confirm", "other"),
    "queue activate": ("other", *CLIENT),
    "queue publish": ("q", '"p"', *CLIENT),
    "queue peek": ("q", *CLIENT),
    "queue consume": ("q", *CLIENT, "--timeout", "0"),
    "queue search": ("q", *SIDE),
    "queue discard": ("q", *SIDE, "--id", "later"),
    "queue redrive": ("q", *CLIENT, "--limit", "5"),
    "queue move": ("q", *SIDE, "--to", "other", "--id", "later"),
    "queue batch list": ("q", *CLIENT),
    "queue batch show": ("q", "b", *CLIENT),
    "queue batch wait": ("q", "b", *CLIENT, "--timeout", "0.2"),
    "queue batch results": ("q", "b", *CLIENT),
    "queue batch close": ("q", "b", *CLIENT),
    "queue batch cancel": ("q", "b", *CLIENT),
    "queue group list": ("q", *CLIENT),
    "queue group create": ("q", "g", *CLIENT),
    "queue group drop": ("q", "g", *CLIENT),
    "queue group stats": ("q", "g", *CLIENT),
    "schedule list": CLIENT,
    "schedule put": ("s", *CLIENT, "--queue", "q", "--cron", "* * * * *", "--payload", '"tick"'),
    "schedule remove": ("s", *CLIENT),
    "schedule next": ("s", *CLIENT),
    "schedule pause": ("s", *CLIENT),
    "schedule resume": ("s", *CLIENT),
    "schedule trigger": ("s", *CLIENT),
    "large create": ("new", "20", "--entries-per-record", "5"),
    "large info": ("large",),
    "large enqueue": ("large", "v"),
    "large dequeue": ("large",),
    "large read": ("large", "1"),
}  # fmt: skip
OTHERWISE = {
    "latch wait": 4, "lock run": 4, "rwlock write": 4, "leader run": 4, "queue sweep": 4, "queue batch wait": 4,
    "queue discard": 3, "queue move": 3, "lock break": 3, "rwlock clear": 3, "leader step-down": 3, "queue result": 2,
    "queue batch results": 2,
    "queue pause": 4, "queue scale": 4,
}  # fmt: skip
"""Exit codes over sound records: what is held, or not done yet, is waited for in vain; nothing has that id, or a
result."""
ELSEWHERE = {"worker", "console", "demo", "outbox stats"}
"""A worker does what its queues' verbs do, a console what `top` does; a demo has a store of its own; an outbox's files:
`test_paged_files`."""
REPORTS = ("stats", "doctor")
"""Look at everything."""


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch):
    """What is run under a lock has ended well; the log of this process stays as it is."""
    for module in (lock, leader, semaphore, group, rwlock):
        monkeypatch.setattr(module, "run_under", lambda *_, **__: 0)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers[:] = [logging.NullHandler()]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)


def run(world: Full, name: str, *, json: bool, arguments: Sequence[str] | None = None) -> tuple[int, str, str]:
    """Run a command over this world: its exit code, what it prints, and what it says on stderr."""
    arguments = COMMANDS[name] if arguments is None else arguments
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    world.clock.slept.clear()
    with (
        mock.patch.object(Session, "store", property(lambda _: world.store)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main(["--store", "memory:", *(["--json"] if json else []), *name.split(), *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    said = [one.buffer.getvalue().decode() for one in (out, err)]
    return code, *said


@cache
def looked_at() -> dict[Key, list[str]]:
    """The records of a full world, each with those of the commands in this run's sample that look at it."""
    found: dict[Key, set[str]] = defaultdict(set)
    for name in matrix.sample(list(COMMANDS), "commands on damaged records", least=16):
        world, keys = Full(), set()
        count = world.store._count

        def counting(verb, request, count=count, keys=keys):
            rows = request if verb.endswith("_many") else [request]
            keys.update(row if isinstance(row, Key) else row.key for row in rows if not isinstance(row, str))
            return count(verb, request)

        world.store._count = counting
        with suppress(Waits):
            run(world, name, json=False)
        for key in keys:
            found[key].add(name)
    records = list(Full().store.inner._records)
    return {key: sorted({*found[key], *REPORTS}) for key in records if "beside" not in str(key)}


OF_THE_OTHER_KIND = "the Java library cannot read both in one farm"
"""What a latch says of a party named by a text, if the damage made another sound latch, of parties named by numbers."""


def wrong_with(code: int, out: str, err: str, as_of_sound: int = 0):
    """What is wrong with how a command ended, that ends so over sound records."""
    if code not in (0, 1, 3, 4, as_of_sound) and OF_THE_OTHER_KIND not in err:
        yield f"exit code {code}: {err[-200:]!r}"
    if "Traceback" in err:
        yield f"a traceback: {err[-300:]!r}"
    if SECRET in err:
        yield f"a payload in what it says: {err[-200:]!r}"
    lines = err.splitlines()
    if code == 1 and not [line for line in lines if line.startswith("latchwork: ")] and not out:
        yield "exit code 1 and no message"
    if [line for line in lines if one_line(line) != line]:
        yield f"what it says does not print: {err[-200:]!r}"


def harm(seed: int, figures: Counter[str]) -> list[str]:
    """Damage one bin, run what looks at it, and say what was wrong."""
    random = Random(seed)
    world, key = Full(), random.choice(list(looked_at()))
    told = damage_one(world, key, random)
    if told is None:
        return []
    figures["damages"] += 1
    names, wrong = looked_at()[key][:], []
    random.shuffle(names)
    for name in names[:MOST]:
        figures["calls"] += 1
        try:
            code, out, err = run(world, name, json=random.random() < 0.3)
        except Waits:
            wrong.append(f"{name}: waits for ever")
        except Exception as failure:
            wrong.append(f"{name}: {with_place(failure)}")
        else:
            figures["errors"] += code == 1
            figures[f"exit {code}"] += 1
            wrong += [f"{name}: {what}" for what in wrong_with(code, out, err, OTHERWISE.get(name, 0))]
    wrong += neighbours_lost(world)
    return [f"seed {seed}, {told}: {what}" for what in wrong]


HOSTILE = (
    "", " ", "-", "--", "a\nb", "a;b=c:d,e", "\x1b[2J", "\u202egnp", "\udcff", "n" * 10_000, "0", "-1", "1e400", "nan",
    "1" * 5_000, "0x10", "None", "{}", '{"a":', "[" * 100_000, "../../etc/passwd", "%s%n", "2026-11-23T00:00:00Z",
)  # fmt: skip
"""What may be typed, or come out of a script's variable, in the place of any argument."""


def with_one_hostile(arguments: Sequence[str], random: Random) -> list[str]:
    """The arguments, one of them another; none after `--`, which are a program's."""
    ours = arguments.index("--") if "--" in arguments else len(arguments)
    found = list(arguments)
    found[random.randrange(ours)] = random.choice(HOSTILE)
    return found


def test_a_hostile_argument_is_taken_or_refused_in_a_line(proved):
    figures, wrong = Counter(), []
    for seed in range(FIRST * 1_000, FIRST * 1_000 + 3 * DAMAGES):
        random = Random(seed)
        name = random.choice([name for name, arguments in COMMANDS.items() if arguments])
        arguments, world = with_one_hostile(COMMANDS[name], random), Full()
        figures["calls"] += 1
        try:
            code, out, err = run(world, name, json=random.random() < 0.3, arguments=arguments)
        except Waits:
            continue  # for what never comes, as it was told to
        except Exception as failure:
            wrong.append(f"seed {seed}: {name} {[each[:40] for each in arguments]}: {with_place(failure)}")
            continue
        figures["refused"] += code == 2
        said = [] if code in (2, 126, 127) and err else wrong_with(code, out, err)
        said = [*said, *(["a traceback"] if "Traceback" in err else []), *neighbours_lost(world)]
        wrong += [f"seed {seed}: {name} {[each[:40] for each in arguments]}: {what}" for what in said]
    proved("hostile arguments", "commands", **figures)
    assert wrong == []


def test_every_command_is_tried():
    assert set(command_names()) == {*COMMANDS, *ELSEWHERE}


@pytest.mark.matrix
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_over_sound_records_ends_well(name):
    code, _, err = run(Full(), name, json=False)
    assert code == OTHERWISE.get(name, 0), err


def test_a_command_over_damaged_records_says_so_in_a_line_and_exits_with_1(proved):
    figures: Counter[str] = Counter()
    wrong = [line for seed in range(FIRST * 1_000, FIRST * 1_000 + DAMAGES) for line in harm(seed, figures)]
    proved("damaged records", "commands", **figures)
    assert wrong == []
