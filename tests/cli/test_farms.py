"""`latchwork leader` over all farms: a real ZooKeeper, and a store of its own for each farm."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from latchwork import connect
from latchwork.coord.lock import LOCKS
from latchwork.store import Key, Put
from latchwork.store.port import Exists
from tests.support.waiting import until

FARMS = ("iad", "lhr")


@pytest.fixture
def urls(tmp_path):
    found = {farm: f"sqlite:{tmp_path / farm}.db?synchronous=off" for farm in FARMS}
    for url in found.values():
        connect(url).get(Key("s", "k"))  # the first call makes the file
    return found


@pytest.fixture
def name():
    return f"office-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def over_all(urls, zookeeper):
    return (
        "--zookeeper",
        zookeeper.hosts,
        *(word for farm in FARMS for word in ("--farm-store", f"{farm}={urls[farm]}")),
    )


def start(name, farm, over_all, *command, more=()):
    words = [sys.executable, "-m", "latchwork.cli", "leader", "run", name, *over_all, "--farm", farm, "--lease", "20",
             *more, "--", *command]  # fmt: skip
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SHOWS = "echo $LATCHWORK_EPOCH $LATCHWORK_FARM $LATCHWORK_STORE; read line; exit 7"


def test_one_farm_at_a_time_runs_the_command_with_an_epoch_that_all_stores_know(lw, name, over_all, urls):
    first = start(name, "iad", over_all, "sh", "-c", SHOWS, more=("--resource", "accounts/42"))
    epoch, farm, store = first.stdout.readline().split()
    assert (farm, store) == ("iad", urls["iad"])
    second = start(name, "lhr", over_all, "sh", "-c", SHOWS, more=("--resource", "accounts/42"))
    until(lambda: len(contenders(lw, name, over_all)) == 2)
    told = lw("leader", "status", name, *over_all, "--json").json
    assert told["leader"].startswith("iad/")
    assert told["epoch"] == int(epoch)
    assert told["farms"] == {farm: {"epoch": int(epoch), "sealed": True, "error": None} for farm in FARMS}
    assert told["contenders"][0] == told["leader"]
    shown = lw("leader", "status", name, *over_all)
    assert f"leads, epoch {epoch} in 2 of 2 farms" in shown.out
    for url in urls.values():
        store = connect(url)
        assert store.get(Key("accounts", "42")).bins["fence"] == int(epoch)
        store.close()
    first.communicate("\n", timeout=30)
    later, farm, store = second.stdout.readline().split()
    assert int(later) > int(epoch)
    assert (farm, store) == ("lhr", urls["lhr"])
    second.communicate("\n", timeout=30)
    assert (first.returncode, second.returncode) == (7, 7)
    ended = lw("leader", "status", name, *over_all, "--json").json
    assert (ended["leader"], ended["epoch"], ended["contenders"]) == (None, int(later), [])


@pytest.mark.long
def test_a_preferred_farm_leads_before_one_that_stood_first(lw, name, over_all):
    held = start(name, "lhr", over_all, "sh", "-c", SHOWS, more=("--prefer", "iad"))
    assert held.stdout.readline()
    waiting = start(name, "lhr", over_all, "sh", "-c", SHOWS, more=("--prefer", "iad"))
    preferred = start(name, "iad", over_all, "sh", "-c", SHOWS, more=("--prefer", "iad"))
    try:
        until(lambda: len(contenders(lw, name, over_all)) == 3)
        held.communicate("\n", timeout=30)
        assert preferred.stdout.readline().split()[1] == "iad"
        preferred.communicate("\n", timeout=30)
        assert waiting.stdout.readline().split()[1] == "lhr"
    finally:
        for process in (held, waiting, preferred):
            process.kill()
            process.communicate()


def contenders(lw, name, over_all):
    return lw("leader", "status", name, *over_all, "--json").json["contenders"]


def test_with_zookeeper_alone_it_decides_in_one_store(lw, name, zookeeper):
    done = lw("leader", "run", name, "--zookeeper", zookeeper.hosts, "--", "sh", "-c", "test $LATCHWORK_EPOCH -gt 0")
    assert done.code == 0
    told = lw("leader", "status", name, "--zookeeper", zookeeper.hosts, "--json").json
    assert (told["leader"], told["contenders"]) == (None, [])


@pytest.mark.parametrize("over_all_farms", [False, True])
def test_that_the_store_is_gone_when_the_command_ends_is_said_by_a_leader_that_zookeeper_chose(
    lw, name, over_all, tmp_path, over_all_farms
):
    options = (*over_all, "--farm", "iad") if over_all_farms else over_all[:2]  # which are --zookeeper alone
    done = lw("leader", "run", name, *options, "--", "sh", "-c", f"rm -f {tmp_path}/*.db*; exit 7")
    assert done.code == 7
    assert "counts as a dead holder's once its lease of 10 s is over" in done.err


# ---- as stats and doctor see it: without ZooKeeper


def at(url, name, epoch, *, locked=1, owner="iad/me", ago=0):
    """A farm's record of the election: an epoch that was renewed so many seconds ago, with a lease of 10 s."""
    store = connect(url)
    store.operate(
        Key(LOCKS, name), Put("fencing-ctr", epoch), Put("locked", locked), Put("lock-owner", owner),
        Put("lease-ms", 10_000), Put("lock-time-ms", int((store.seams.wall() - ago) * 1000)), Put("renewals", 1),
        exists=Exists.ANY,
    )  # fmt: skip
    store.close()


@pytest.fixture
def farms(urls):
    return tuple(word for farm in FARMS for word in ("--farm-store", f"{farm}={urls[farm]}"))


def wrong(lw, name, farms):
    (row,) = lw("stats", "--client", "c", "--election", name, *farms, "--json").json
    lines = [line for line in lw("doctor", "--election", name, *farms, "--json").json if "election" in line["what"]]
    return row, lines


def test_a_leader_that_all_farms_know_is_in_order(lw, name, farms, urls):
    for url in urls.values():
        at(url, name, 7, locked=int("iad" in url))
    row, (line,) = wrong(lw, name, farms)
    assert row == {"kind": "election", "name": name, "standing": "iad/me leads, epoch 7 in 2 of 2 farms", "wrong": None}
    assert line["state"] == "ok"


def test_nothing_counts_as_sealed_before_the_first_leader(lw, name, farms, urls):
    never = lw("leader", "status", name, *farms, "--json")
    assert never.code == 3, "as in one store: perhaps the name is wrong"
    assert [farm["sealed"] for farm in never.json["farms"].values()] == [False] * 2
    at(urls["iad"], name, 7)
    told = lw("leader", "status", name, *farms, "--json").json["farms"]
    assert {farm: told[farm]["sealed"] for farm in FARMS} == {"iad": True, "lhr": False}


def test_an_empty_zookeeper_as_of_a_variable_that_is_not_set_is_refused(lw, name, farms, sqlite_url):
    connect(sqlite_url).get(Key("s", "k"))  # the first call makes the file
    for words in (farms, ()):
        refused = lw("leader", "status", name, *words, "--zookeeper", "")
        assert (refused.code, "no ZooKeeper: ''" in refused.err) == (2, True)


def test_a_farm_in_which_the_epoch_is_not_sealed_is_named(lw, name, farms, urls):
    at(urls["iad"], name, 7)
    at(urls["lhr"], name, 5, owner="lhr/old")
    row, (line,) = wrong(lw, name, farms)
    assert row["standing"] == "iad/me leads, epoch 7 in 1 of 2 farms"
    assert "farm lhr has seen epoch 5, and the latest is 7" in line["what"]
    assert line["state"] == "problem"
    assert lw("doctor", "--election", name, *farms).code == 1


def test_a_leader_that_does_not_renew_a_farm_that_does_not_answer_and_an_empty_office_are_named(
    lw, name, farms, urls, tmp_path
):
    _, (line,) = wrong(lw, name, farms)
    assert "nobody leads" in line["what"]
    at(urls["iad"], name, 7, ago=70.5)
    at(urls["lhr"], name, 7, locked=0)
    _, lines = wrong(lw, name, farms)
    assert any("s after its lease" in line["what"] for line in lines), lines
    (tmp_path / "no.db").mkdir()
    _, lines = wrong(lw, name, ("--farm-store", f"iad=sqlite:{tmp_path / 'no.db'}", *farms[2:]))
    assert any("farm iad cannot be looked at" in line["what"] for line in lines), lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("leader", "run", "n", "--farm-store", "iad=sqlite:x", "--", "true"), "name it"),
        (("leader", "run", "n", "--prefer", "iad", "--", "true"), "give --farm-store too"),
        (("leader", "run", "n", "--all-farms", "--", "true"), "give --farm-store too"),
        (("leader", "run", "n", "--farm", "", "--", "true"), "give --farm-store too"),
        (("leader", "status", "n", "--farm-store", "sqlite://u:secret@x"), "write FARM=URL"),
        (("leader", "status", "n", "--farm-store", "a=sqlite:x", "--farm-store", "a=sqlite:y"), "twice"),
        (("stats", "--client", "c", "--election", "e"), "--farm-store for each"),
        (("leader", "run", "n", "--zookeeper", "z", "--farm-store", "iad=sqlite:x", "--farm", "sin", "--", "true"),
         "names the farm 'sin'"),
        (("leader", "run", "n", "--zookeeper", "z", "--farm-store", "iad=sqlite:x", "--farm", "iad", "--resource", "r",
          "--", "true"), "write SET/KEY"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_asked(lw, words, said):
    done = lw(*words)
    assert done.code == 2
    assert said in done.err
    assert "secret" not in done.err + done.out


def test_a_password_of_a_farms_store_is_not_for_the_command_line(lw, monkeypatch):
    url = "aerospike://u:hidden@127.0.0.1:1/test"
    typed = lw("leader", "run", "n", "--farm-store", f"iad={url}", "--", "true")
    assert "every user of this machine can see a password" in typed.err
    monkeypatch.setenv("LATCHWORK_FARM_STORES", f"iad={url} lhr={url}x")
    kept = lw("leader", "run", "n", "--", "true")
    assert "name it" in kept.err
    assert "can see a password" not in kept.err
    assert "hidden" not in typed.err + kept.err


def test_a_leader_that_has_not_renewed_for_its_lease_does_not_lead_and_the_exit_code_says_so(lw, name, farms, urls):
    at(urls["iad"], name, 7, ago=70)
    at(urls["lhr"], name, 7, locked=0)
    done = lw("leader", "status", name, *farms)
    assert (done.code, done.out.splitlines()[0]) == (
        1,
        f"{name}: nobody leads: iad/me led last, epoch 7 in 2 of 2 farms",
    )
    told = lw("leader", "status", name, *farms, "--json").json
    assert (told["leader"], told["last_leader"]) == (None, "iad/me")
    at(urls["iad"], name, 7)
    assert lw("leader", "status", name, *farms).code == 0


def test_while_a_farm_is_away_it_is_not_known_who_leads_and_a_leader_elsewhere_steps_down_all_the_same(
    lw, name, farms, urls, tmp_path
):
    at(urls["lhr"], name, 7, owner="lhr/me")
    (tmp_path / "no.db").mkdir()
    away = ("--farm-store", f"iad=sqlite:{tmp_path / 'no.db'}")
    at(urls["iad"], name, 7, locked=0)
    assert lw("leader", "status", name, *away, *farms[2:], "--json").json["leader"] == "lhr/me"
    done = lw("leader", "step-down", name, "--epoch", "7", *away, *farms[2:])
    assert (done.code, "farm iad could not be asked: " in done.err) == (0, True)
    told = lw("leader", "status", name, *away, *farms[2:], "--json").json
    assert (told["leader"], bool(told["stepped_down_by"])) == (None, True)
    alone = lw("leader", "status", name, *away, "--farm-store", f"iad2={urls['iad']}")
    assert "it is not known who leads" in alone.out
    assert "nobody leads" not in alone.out
    assert lw("leader", "step-down", name, "--epoch", "7", *away).code == 1
