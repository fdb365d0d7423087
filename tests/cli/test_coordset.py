"""The commands of the coordination set: groups, semaphores, read-write locks, rate limiters."""

from __future__ import annotations

import re
import threading
import time

import pytest

from latchwork import connect
from latchwork.cli import hoist
from latchwork.coord import Barrier, Group, RateLimiter, ReadWriteLock, Semaphore
from latchwork.errors import BarrierBroken, WaitTimeout
from latchwork.observe.audit import audit_of
from latchwork.store import Exists, Key, Put


def test_a_command_runs_while_holding_permits_with_its_fence_its_slots_and_its_exit_code(here):
    script = 'test "$LATCHWORK_SLOTS" = 0,1 && echo $LATCHWORK_FENCE; exit 7'
    first = here("semaphore", "run", "s", "--permits", "2", "-n", "2", "sh", "-c", script)
    second = here("semaphore", "run", "s", "--permits", "2", "-n", "2", "--", "sh", "-c", script)
    assert (first.code, second.code) == (7, 7)
    assert int(second.out) > int(first.out) > 0


def test_permits_that_are_held_time_out_with_4_and_show_says_who_holds_them(lw, sqlite_url):
    store = connect(sqlite_url)
    assert lw("semaphore", "show", "s").code == 3
    with Semaphore(store, "s", permits=1, owner="me").acquire(timeout=1) as held:
        assert lw("semaphore", "run", "s", "--permits", "1", "--timeout", "0.1", "--", "true").code == 4
        shown = lw("semaphore", "show", "s", "--json").json
        assert (shown["permits"], shown["held"]) == (1, 1)
        assert (shown["holders"][0]["owner"], shown["holders"][0]["fence"]) == ("me", held.fence)
        assert "me: slots 0" in lw("semaphore", "show", "s").out
    assert lw("semaphore", "resize", "s", "3").code == 0
    assert lw("semaphore", "show", "s", "--json").json["permits"] == 3
    assert lw("semaphore", "resize", "s", "0").code == 2
    store.close()


def test_options_of_what_is_run_stay_with_it():
    words = ["semaphore", "run", "s", "--permits", "2", "-n", "1", "ls", "--json"]
    assert hoist(words) == [*words[:7], "--", *words[7:]]


def test_a_limiter_is_asked_or_waited_for_from_a_script(lw):
    limit = ("l", "--limit", "2", "--per", "30", "--json")
    assert [lw("limit", "try", *limit).json["remaining"] for _ in range(2)] == [1, 0]
    refused = lw("limit", "try", *limit)
    assert (refused.code, refused.json["allowed"]) == (4, False)
    assert 20 < refused.json["retry_after"] <= 33
    assert lw("limit", "wait", *limit, "--timeout", "1").json["allowed"] is False
    short = ("s", "--limit", "1", "--per", "0.2")
    assert [lw("limit", "wait", *short, "--timeout", "5").code for _ in range(3)] == [0, 0, 0]
    assert lw("limit", "try", "l", "--limit", "0", "--per", "1").code == 2
    assert lw("limit", "wait", "m", "--limit", "1", "--per", "60").out == "let through, 0 left\n"
    assert lw("limit", "wait", "m", "--limit", "1", "--per", "60", "--timeout", "1").code == 4


def test_a_command_runs_while_reading_or_writing(here, url):
    script = "echo $LATCHWORK_FENCE; exit 5"
    wrote = here("rwlock", "write", "l", "sh", "-c", script)
    read = here("rwlock", "read", "l", "--", "sh", "-c", script)
    assert (wrote.code, read.code, read.out) == (5, 5, wrote.out)
    store = connect(url)
    with ReadWriteLock(store, "m", owner="me").read(1):
        assert here("rwlock", "read", "m", "--timeout", "0.1", "--", "true").code == 0
        assert here("rwlock", "write", "m", "--timeout", "0.1", "--", "true").code == 4
        shown = here("rwlock", "show", "m", "--json").json
        assert [(one["owner"], one["mode"]) for one in shown["holders"]] == [("me", "read")]
        assert "me has it to read" in here("rwlock", "show", "m").out
    assert here("rwlock", "show", "m").out == "m: nobody reads or writes\n"


def test_a_command_runs_as_a_member_of_a_group(here, url):
    done = here(
        "group", "run", "g", "--as", "p", "--meta", '{"x": 1}', "sh", "-c", "echo $LATCHWORK_MEMBER $LATCHWORK_FENCE"
    )
    name, fence = done.out.split()
    assert (done.code, name, int(fence) > 0) == (0, "p", True)
    store = connect(url)
    group = Group(store, "g", farm_id="a")
    with group.join("q", meta={"host": "h"}):
        (row,) = here("group", "members", "g", "--json").json
        assert (row["member"], row["farm"], row["meta"]) == ("q", "a", {"host": "h"})
        assert here("group", "watch", "g", "--timeout", "0").out == "joined a/q\n"
    assert "nobody" in here("group", "members", "g").out
    assert here("group", "run", "g", "--as", "p", "--farm", "a", "--", "false").code == 1
    assert group.lost() == {"a/p"}
    assert here("group", "run", "g", "--meta", "no json", "--", "true").code == 2
    store.close()


def test_when_a_member_was_heard_of_does_not_depend_on_the_clock_of_who_asks(here, url, monkeypatch):
    store = connect(url)
    with Group(store, "g").join("q"):
        monkeypatch.setattr(type(store.seams), "wall", lambda _: time.time() - 3600)  # not the store's clock
        (row,) = here("group", "members", "g", "--json").json
    assert 0 <= row["heard_s_ago"] < 60
    store.close()


def test_scripts_meet_at_a_barrier_and_hear_what_each_has_brought(lw, sqlite_url):
    two = ("b", "--client", "c", "--farm", "a", "--party", "p", "--party", "q")
    connect(sqlite_url).get(Key("s", "k"))  # the first call makes the file
    assert lw("barrier", "show", *two).code == 3
    assert lw("barrier", "wait", *two, "--as", "p", "--timeout", "0.2").code == 4
    late = lw("barrier", "show", *two).out
    assert (late.splitlines()[0], "late p" in late, "waiting" in late) == ("b: 0 of 2 have arrived", True, False)
    mistyped = lw("barrier", "show", "bb", *two[1:])
    assert (mistyped.code, "is 'b' meant?" in mistyped.err) == (3, True), "as what else shows a thing by its name"
    store = connect(sqlite_url)
    told = []
    waits = Barrier(store, "c", "b", parties=["p", "q"], farm_id="a").wait
    thread = threading.Thread(target=lambda: told.append(waits("q", [1], 30)))
    thread.start()
    while lw("barrier", "show", *two, "--json").json["arrived"] != ["q"]:
        pass
    assert lw("barrier", "show", *two).out.splitlines()[:2] == ["b: 1 of 2 have arrived", "waiting for p"]
    shown = lw("barrier", "wait", *two, "--as", "p", "--payload", '{"x": 1}', "--timeout", "30")
    assert (shown.code, shown.out) == (0, 'p: {"x": 1}\nq: [1]\n')
    thread.join()
    assert told == [{"p": {"x": 1}, "q": [1]}]
    one = ("o", "--client", "c", "--party", "p")
    assert lw("barrier", "wait", *one, "--as", "p", "--json").json["brought"] == {"p": None}
    assert lw("barrier", "wait", *one, "--as", "x").code == 2
    assert lw("barrier", "wait", *one, "--as", "p", "--payload", "no json").code == 2
    assert (
        lw("barrier", "abort", "never", "--client", "c", "--party", "p", "--reason", "x").out
        == "nobody waits at never\n"
    )
    store.close()


def test_who_waits_at_a_barrier_exits_with_1_where_it_is_aborted_or_a_party_died(lw, sqlite_url):
    store = connect(sqlite_url)
    group = Group(store, "g", farm_id="a")
    with pytest.raises(RuntimeError), group.join("q"):
        raise RuntimeError("no memory")
    two = ("b", "--client", "c", "--farm", "a", "--party", "p", "--party", "q")
    died = lw("barrier", "wait", *two, "--as", "p", "--alive", "g", "--timeout", "30")
    assert (died.code, "PARTY_LOST" in died.err) == (1, True)
    told = []

    def waits():
        try:
            Barrier(store, "c", "b", parties=["p", "q"], farm_id="a").wait("p", timeout=30)
        except BarrierBroken as broken:
            told.append(broken.reason)

    thread = threading.Thread(target=waits)
    thread.start()
    while lw("barrier", "show", *two, "--json").json["arrived"] != ["p"]:
        pass
    assert lw("barrier", "abort", *two, "--reason", "no input", "--json").json["aborted"] is True
    thread.join()
    assert told == ["no input"]
    store.close()


# ---- doctor and stats


@pytest.fixture
def store(sqlite_url):
    store = connect(sqlite_url)
    yield store
    store.close()


def silent(store, key, bin, entry):
    """A holder that has not renewed since 1970, and a little."""
    stored = store.get(key).bins[bin]
    store.operate(key, Put(bin, {**stored, **entry(stored)}))


def troubles(lw, *options):
    done = lw("doctor", "--client", "c", *options, "--json")
    named = [
        one for one in done.json if one["what"].split()[0] in ("group", "semaphore", "rwlock", "barrier", "limiter")
    ]
    return done.code, [(one["state"], one["what"]) for one in named], [one["remedy"] for one in named]


def test_doctor_says_that_all_is_well_with_what_is_named(lw, store):
    with (
        Group(store, "g", farm_id="a").join("p"),
        Semaphore(store, "s", permits=2).acquire(timeout=1),
        ReadWriteLock(store, "l").read(1),
    ):
        RateLimiter(store, "r", 5, 60).try_acquire(2)
        Barrier(store, "c", "b", parties=["p"], farm_id="a").wait("p", timeout=5)
        names = ("--group", "g", "--semaphore", "s", "--rwlock", "l", "--limiter", "r", "--barrier", "b")
        code, found, _ = troubles(lw, *names)
        assert (code, [state for state, _ in found]) == (0, ["ok"] * 5), found
        assert [re.sub("[0-9]{9,}", "N", what) for _, what in found] == [
            "group g: 1 member", "semaphore s: 1 of 2 held", "rwlock l: 1 read, 0 write", "limiter r: 2 in 60 s",
            "barrier b: generation N, here: nobody",
        ]  # fmt: skip
        rows = lw("stats", "--client", "c", *names, "--json").json
        assert [(row["kind"], row["name"], row["wrong"]) for row in rows[-5:]] == [
            ("group", "g", None), ("semaphore", "s", None), ("rwlock", "l", None), ("limiter", "r", None),
            ("barrier", "b", None),
        ]  # fmt: skip
        table = lw("stats", "--client", "c", *names).out
        assert "1 of 2 held" in table


def test_doctor_names_members_that_died_or_are_silent(lw, store):
    group = Group(store, "g", farm_id="a")
    with pytest.raises(RuntimeError), group.join("p"):
        raise RuntimeError("no memory")
    with group.join("q", lease=10, keep_alive=False):
        silent(store, Key("latchwork_groups", "g"), "beat#a", lambda beats: {"q": beats["q"] - 60_000})
        silent(
            store,
            Key("latchwork_groups", "g"),
            "about#a",
            lambda about: {"q": [*about["q"][:2], about["q"][2] - 60_000, about["q"][3]]},
        )
        code, found, remedies = troubles(lw, "--group", "g")
    assert code == 1
    assert [state for state, _ in found] == ["problem"] * 2
    assert "a/q has not renewed for 6" in found[0][1]
    assert found[1][1] == "group g: a/p died"
    assert all("start it again" in remedy for remedy in remedies)


def test_doctor_names_permits_of_dead_holders_and_the_writer_that_died(lw, store):
    with (
        Semaphore(store, "s", permits=2, owner="job-1").acquire(timeout=1),
        ReadWriteLock(store, "l", owner="job-2").write(1),
    ):
        for key in (Key("latchwork_semaphores", "s"), Key("latchwork_rwlocks", "l")):
            silent(store, key, "renewed", lambda stamps: {id: stamp - 60_000 for id, stamp in stamps.items()})
        code, found, remedies = troubles(lw, "--semaphore", "s", "--rwlock", "l")
    assert code == 1
    assert [state for state, _ in found] == ["warning", "problem"]
    assert "job-1 has 1 of 2 permits, and has not renewed for 6" in found[0][1]
    assert "job-2 has it to write, and has not renewed for 6" in found[1][1]
    store.operate(Key("latchwork_rwlocks", "l"), Put("abandoned", 7))
    code, found, remedies = troubles(lw, "--rwlock", "l")
    assert (code, found[0][0]) == (1, "problem")
    assert "fence 7 died before it released" in found[0][1]
    assert remedies[0] == "repair what it protects, then say so: latchwork rwlock clear l --fence 7"


@pytest.fixture
def dead_writer(store):
    """The fence of a writer of the lock `l` that died, and has been replaced since."""
    left = ReadWriteLock(store, "l", owner="job-2", lease=0.05).write(1)
    with ReadWriteLock(store, "l").write(30) as grant:
        assert grant.abandoned == left.fence
    return left.fence


def test_the_mark_of_a_dead_writer_is_shown_with_the_command_that_clears_it_which_works_as_printed(
    lw, store, dead_writer
):
    shown = lw("rwlock", "show", "l")
    assert shown.out.splitlines() == [
        "l: nobody reads or writes",
        f"the writer with the fence {dead_writer} died before it released: its changes may be incomplete",
        f"repair what it protects, then say so: latchwork rwlock clear l --fence {dead_writer}",
    ]
    assert lw("rwlock", "show", "l", "--json").json["abandoned"] == dead_writer
    command = shown.out.splitlines()[-1].partition("latchwork ")[2].split()
    done = lw(*command, "--why", "loaded again")
    assert (done.code, done.out) == (0, f"l: cleared what the writer with the fence {dead_writer} left\n")
    assert lw("rwlock", "show", "l").out == "l: nobody reads or writes\n"
    assert lw("rwlock", "show", "l", "--json").json["abandoned"] is None
    assert troubles(lw, "--rwlock", "l")[1] == [("ok", "rwlock l: 0 read, 0 write")]
    (deed,) = audit_of(store)
    assert (deed.what, deed.target, deed.why, deed.after) == ("clear", "rwlock/l", "loaded again", "cleared")
    assert "rwlock/l" in lw("audit", "--about", "l", "--client", "shop").out


def test_the_mark_of_another_writer_than_the_one_that_was_named_is_left_alone(lw, store, dead_writer):
    other = lw("rwlock", "clear", "l", "--fence", str(dead_writer - 1))
    assert (other.code, f"it is the one with the fence {dead_writer} that died" in other.err) == (3, True)
    assert lw("rwlock", "clear", "l", "--fence", "0").code == 2
    assert "'1.5' is not a whole number from 1 on" in lw("rwlock", "clear", "l", "--fence", "1.5").err
    assert lw("rwlock", "clear", "never", "--fence", "1").code == 3
    with ReadWriteLock(store, "l").write(5) as grant:
        assert grant.abandoned == dead_writer
    assert lw("rwlock", "clear", "l", "--fence", str(dead_writer)).code == 0
    again = lw("rwlock", "clear", "l", "--fence", str(dead_writer))
    assert (again.code, "no writer has left it unfinished" in again.err) == (3, True)


def test_a_mark_is_not_cleared_while_others_hold_the_lock(lw, store, dead_writer):
    with ReadWriteLock(store, "l", owner="ann").read(5):
        waited = lw("rwlock", "clear", "l", "--fence", str(dead_writer), "--timeout", "0.1")
    assert (waited.code, "'ann' had it to read" in waited.err) == (4, True)
    assert lw("rwlock", "show", "l", "--json").json["abandoned"] == dead_writer


def test_a_dead_writer_that_nobody_has_replaced_is_cleared_by_the_command_that_doctor_prints(lw, store):
    left = ReadWriteLock(store, "l", owner="job-2", lease=0.05).write(1)
    silent(
        store, Key("latchwork_rwlocks", "l"), "renewed", lambda stamps: {id: one - 60_000 for id, one in stamps.items()}
    )
    _, _, remedies = troubles(lw, "--rwlock", "l")
    repaired = f"repair what it protects, then say so: latchwork rwlock clear l --fence {left.fence}"
    assert remedies == [f"its changes may be incomplete: {repaired}"]
    assert lw("rwlock", "clear", "l", "--fence", str(left.fence)).code == 0
    assert lw("rwlock", "show", "l", "--json").json["abandoned"] is None
    assert audit_of(store)[0].before == f"job-2 had it to write, fence {left.fence}"


def test_doctor_says_why_a_barrier_was_broken_and_what_is_not_there(lw, store):
    with pytest.raises(WaitTimeout):
        Barrier(store, "c", "b", parties=["p", "q"], farm_id="a").wait("p", timeout=1)
    code, found, remedies = troubles(lw, "--barrier", "b", "--group", "never", "--limiter", "never")
    assert code == 1
    assert [state for state, _ in found] == ["warning", "warning", "problem"]
    assert found[2][1].endswith(" was broken: late p")
    assert "more time" in remedies[2]
    assert lw("doctor", "--barrier", "b").code == 2


def test_doctor_says_that_a_record_is_damaged_whose_holders_hold_what_nobody_can(lw, store):
    entry = {"a": [1, 1000, 3, "o", 7]}
    store.operate(
        Key("latchwork_semaphores", "s"), Put("holders", entry), Put("renewed", {"a": 3}), exists=Exists.ANY, ttl=60
    )
    found = lw("doctor", "--semaphore", "s")
    assert found.code == 1
    assert "semaphore s: the record" in found.out
    assert "delete the record while nobody uses it" in found.out


def test_doctor_sees_a_limiter_whose_clock_was_set_back_and_damaged_records(lw, store):
    RateLimiter(store, "r", 5, 60).try_acquire()
    key = Key("latchwork_limits", "r")
    (bin,) = [name for name in store.get(key).bins if name.startswith("per-")]
    silent(store, key, bin, lambda cells: {max(cells) + 100: 3})
    code, found, _ = troubles(lw, "--limiter", "r")
    assert (code, found[0][0]) == (1, "problem")
    assert "set back" in found[0][1]
    store.operate(Key("latchwork_semaphores", "s"), Put("holders", "damaged"), exists=Exists.ANY, ttl=60)
    store.operate(key, Put(bin, "damaged"))
    code, found, _ = troubles(lw, "--semaphore", "s", "--limiter", "r")
    assert (code, [state for state, _ in found]) == (1, ["problem"] * 2)


RUNS = {
    "lock": ("lock", "run", "n", "--"),
    "semaphore": ("semaphore", "run", "n", "--permits", "1", "--"),
    "read": ("rwlock", "read", "n", "--"),
    "write": ("rwlock", "write", "n", "--"),
    "group": ("group", "run", "n", "--as", "p", "--"),
    "leader": ("leader", "run", "n", "--"),
}


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("run", RUNS)
def test_the_exit_code_is_the_commands_though_the_store_is_gone_when_it_ends(lw, tmp_path, run, code):
    """A script would run the job again, which has ended well, or take its code for another failure."""
    done = lw(*RUNS[run], "sh", "-c", f"rm -f {tmp_path}/cli.db*; exit {code}")
    assert done.code == code
    assert "counts as a dead holder's once its lease of 10 s is over" in done.err
    assert "[STORAGE_FAILED]" in done.err
