"""`latchwork leader step-down`."""

from __future__ import annotations

import latchwork
from latchwork.coord import LeaseElection
from latchwork.observe.audit import audit_of
from tests.support.waiting import until


def test_a_leader_steps_down_by_the_command_and_it_is_kept_who_did_it_and_why(lw, sqlite_url):
    store = latchwork.connect(sqlite_url)
    election = LeaseElection(store, "office", candidate="web-1", lease=1)
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


def test_a_leader_over_all_farms_steps_down_in_the_farm_where_it_leads(lw, tmp_path):
    urls = {farm: f"sqlite:{tmp_path / farm}.db?synchronous=off" for farm in ("eu", "us")}
    stores = {farm: latchwork.connect(url) for farm, url in urls.items()}
    election = LeaseElection(stores["us"], "office", candidate="us/web-1", lease=1)
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
