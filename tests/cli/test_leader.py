"""`latchwork leader step-down`, and what other commands say after it."""

from __future__ import annotations

import getpass

import pytest

import latchwork
from latchwork.cli.coord.elections import office_of
from latchwork.coord import FencedLock, LeaseElection
from latchwork.observe.audit import audit_of
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.support.waiting import until


def test_a_leader_steps_down_by_the_command_and_it_is_kept_who_did_it_and_why(lw, sqlite_url):
    store = latchwork.connect(sqlite_url)
    election = LeaseElection(store, "office", candidate="web-1", lease=3)
    election.start()
    try:
        epoch = until(lambda: election.leadership).epoch
        lost = election.leadership.lost
        refused = lw("leader", "step-down", "office", "--epoch", "1")
        assert (refused.code, "`latchwork leader status` names its leader" in refused.err) == (3, True)
        done = lw("leader", "step-down", "office", "--epoch", str(epoch), "--why", "it hangs")
        assert (done.code, "its leader steps down" in done.out) == (0, True)
        assert lost.wait(10)
        assert lw("leader", "step-down", "office", "--epoch", str(epoch)).code == 3
        deeds = [(one.what, one.target, one.why, one.before, one.after) for one in reversed(audit_of(store))]
        assert deeds[1][:3] == ("step-down", "election/office", "it hangs")
        assert "web-1" in deeds[1][3]
        assert [one[4] for one in deeds] == ["nobody led in that epoch", "stepped down", "nobody led in that epoch"]
    finally:
        election.stop()
        store.close()


@pytest.mark.parametrize(("waited", "has_run_out"), [(2.999, False), (3, False), (3.001, True)])
def test_a_leader_has_run_out_once_more_than_its_lease_is_over(waited, has_run_out):
    clock = ManualClock()
    store = MemoryStore(clock)
    FencedLock(store, "office", owner="web-1", lease=3).acquire(timeout=0)
    clock.advance(waited)
    office = office_of({"eu": store}, "office")
    assert (office.leader, office.has_run_out) == ("web-1", has_run_out)


def test_a_leader_over_all_farms_steps_down_in_the_farm_where_it_leads(lw, tmp_path):
    urls = {farm: f"sqlite:{tmp_path / farm}.db?synchronous=off" for farm in ("eu", "us")}
    stores = {farm: latchwork.connect(url) for farm, url in urls.items()}
    election = LeaseElection(stores["us"], "office", candidate="us/web-1", lease=3)
    election.start()
    try:
        epoch = until(lambda: election.leadership).epoch
        stores["eu"].scan("latchwork_locks")  # its file is there
        farms = [word for farm, url in urls.items() for word in ("--farm-store", f"{farm}={url}")]
        assert lw("leader", "step-down", "office", "--epoch", str(epoch), *farms).code == 0
    finally:
        election.stop()
        for store in stores.values():
            store.close()


# ---- the election after a step-down


@pytest.fixture
def store(sqlite_url):
    store = latchwork.connect(sqlite_url)
    yield store
    store.close()


def test_after_a_step_down_nobody_leads_and_it_is_said_who_did_it_who_led_and_when_another_is_elected(lw, store):
    election = LeaseElection(store, "office", candidate="web-1", lease=600)
    election.start()
    try:
        epoch = until(lambda: election.leadership).epoch
        assert lw("leader", "step-down", "office", "--epoch", str(epoch)).code == 0
        done, told = lw("leader", "status", "office"), lw("leader", "status", "office", "--json")
    finally:
        election.stop()
    first, before, candidates = done.out.splitlines()
    assert first.startswith(f"office: nobody leads: {getpass.getuser()}@")
    assert "made the leader step down" in first
    assert "; a candidate is elected once the lease of 600 s is over, in " in first
    assert before == f"before that it was led by web-1, epoch {epoch}"
    assert candidates == "candidates: web-1"
    assert (done.code, told.code) == (0, 0), "as where a leader has resigned"
    assert (told.json["leader"], told.json["last_leader"], told.json["renewed_s_ago"]) == (None, None, None)
    assert told.json["stepped_down_by"].startswith(f"{getpass.getuser()}@")


def test_after_a_step_down_without_a_candidate_it_is_said_that_none_follows(lw, store):
    grant = FencedLock(store, "office", owner="web-1", lease=0.05).acquire(1)  # as an election has it
    assert LeaseElection(store, "office", candidate="ann").step_down(grant.fence)
    done = lw("leader", "status", "office")
    assert done.code == 0
    assert done.out.startswith("office: nobody leads: ann made the leader step down ")
    assert done.out.endswith("ago; no candidate is there, so nobody follows: start one\n")


def test_a_sweep_after_a_step_down_takes_nobody_for_the_leader(lw, store):
    QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    grant = FencedLock(store, "shop-sweeper", owner="web-1", lease=600).acquire(1)  # as an election has it
    assert LeaseElection(store, "shop-sweeper", candidate="ann").step_down(grant.fence)
    done = lw("queue", "sweep", "--client", "shop", "--timeout", "0.1")
    assert done.code == 4
    assert "A leader that died, or was made to step down, is replaced once its lease was seen unchanged" in done.err
    assert "broken by" not in done.err


def test_after_the_upkeep_of_a_client_was_made_to_step_down_doctor_and_stats_name_no_leader(lw, store):
    QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1)).publish("a")
    grant = FencedLock(store, "shop-sweeper", owner="web-1", lease=600).acquire(1)  # as an election has it
    assert LeaseElection(store, "shop-sweeper", candidate="ann").step_down(grant.fence)
    for command in ("doctor", "stats"):
        told = lw(command, "--client", "shop").out
        assert "broken by" not in told
        assert "ann leads" not in told
    assert "ann made the leader step down" in lw("doctor", "--client", "shop").out


def test_an_election_without_a_step_down_names_nobody_who_did_it(lw, store):
    FencedLock(store, "office", owner="web-1", lease=600).acquire(1)
    told = lw("leader", "status", "office", "--json").json
    assert (told["leader"], told["stepped_down_by"]) == ("web-1", None)


def test_after_a_step_down_over_all_farms_nobody_leads_and_no_farm_is_behind(lw, tmp_path):
    urls = {farm: f"sqlite:{tmp_path / farm}.db?synchronous=off" for farm in ("eu", "us")}
    stores = {farm: latchwork.connect(url) for farm, url in urls.items()}
    grant = FencedLock(stores["us"], "office", owner="us/web-1", lease=600).acquire(1)  # as an election has it
    stores["eu"].scan("latchwork_locks")  # its file is there
    farms = [word for farm, url in urls.items() for word in ("--farm-store", f"{farm}={url}")]
    assert lw("leader", "step-down", "office", "--epoch", str(grant.fence), *farms).code == 0
    done = lw("leader", "status", "office", *farms)
    first, why = done.out.splitlines()
    assert (done.code, first) == (0, "office: nobody leads")
    assert why.startswith(f"{getpass.getuser()}@")
    assert " made the leader step down: a candidate is elected once the lease of 600 s is over, in " in why
    told = lw("leader", "status", "office", *farms, "--json").json
    assert (told["leader"], told["stepped_down_by"]) == (None, why.partition(" ")[0])
    state = lw("doctor", *farms, "--election", "office", "--json").json
    (state,) = [one for one in state if one["what"].startswith("election office: ")]
    assert (state["state"], state["what"]) == ("warning", f"election office: {why}")
    for store in stores.values():
        store.close()
