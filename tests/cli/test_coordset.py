"""The commands of the coordination set: groups, semaphores, read-write locks, rate limiters."""

from __future__ import annotations

import threading

import pytest

from latchwork import connect
from latchwork.cli import hoist
from latchwork.coord import Barrier, Group, ReadWriteLock, Semaphore
from latchwork.errors import BarrierBroken


def test_a_command_runs_while_holding_permits_with_its_fence_its_slots_and_its_exit_code(run):
    script = 'test "$LATCHWORK_SLOTS" = 0,1 && echo $LATCHWORK_FENCE; exit 7'
    first = run("semaphore", "run", "s", "--permits", "2", "-n", "2", "sh", "-c", script)
    second = run("semaphore", "run", "s", "--permits", "2", "-n", "2", "--", "sh", "-c", script)
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


def test_a_command_runs_while_reading_or_writing(lw, run, sqlite_url):
    script = "echo $LATCHWORK_FENCE; exit 5"
    wrote = run("rwlock", "write", "l", "sh", "-c", script)
    read = run("rwlock", "read", "l", "--", "sh", "-c", script)
    assert (wrote.code, read.code, read.out) == (5, 5, wrote.out)
    store = connect(sqlite_url)
    with ReadWriteLock(store, "m", owner="me").read(1):
        assert lw("rwlock", "read", "m", "--timeout", "0.1", "--", "true").code == 0
        assert lw("rwlock", "write", "m", "--timeout", "0.1", "--", "true").code == 4
        shown = lw("rwlock", "show", "m", "--json").json
        assert [(one["owner"], one["mode"]) for one in shown["holders"]] == [("me", "read")]
        assert "me has it to read" in lw("rwlock", "show", "m").out
    assert lw("rwlock", "show", "m").out == "m: nobody reads or writes\n"


def test_a_command_runs_as_a_member_of_a_group(lw, run, sqlite_url):
    done = run(
        "group", "run", "g", "--as", "p", "--meta", '{"x": 1}', "sh", "-c", "echo $LATCHWORK_MEMBER $LATCHWORK_FENCE"
    )
    name, fence = done.out.split()
    assert (done.code, name, int(fence) > 0) == (0, "p", True)
    store = connect(sqlite_url)
    group = Group(store, "g", farm_id="a")
    with group.join("q", meta={"host": "h"}):
        (row,) = lw("group", "members", "g", "--json").json
        assert (row["member"], row["farm"], row["meta"]) == ("q", "a", {"host": "h"})
        assert lw("group", "watch", "g", "--timeout", "0").out == "joined a/q\n"
    assert "nobody" in lw("group", "members", "g").out
    assert lw("group", "run", "g", "--as", "p", "--farm", "a", "--", "false").code == 1
    assert group.lost() == {"a/p"}
    assert lw("group", "run", "g", "--meta", "no json", "--", "true").code == 2
    store.close()


def test_scripts_meet_at_a_barrier_and_hear_what_each_has_brought(lw, sqlite_url):
    two = ("b", "--client", "c", "--farm", "a", "--party", "p", "--party", "q")
    assert "0 of 2" in lw("barrier", "show", *two).out
    assert lw("barrier", "wait", *two, "--as", "p", "--timeout", "0.2").code == 4
    assert "late p" in lw("barrier", "show", *two).out
    store = connect(sqlite_url)
    told = []
    waits = Barrier(store, "c", "b", parties=["p", "q"], farm_id="a").wait
    thread = threading.Thread(target=lambda: told.append(waits("q", [1], 30)))
    thread.start()
    while lw("barrier", "show", *two, "--json").json["arrived"] != ["q"]:
        pass
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
