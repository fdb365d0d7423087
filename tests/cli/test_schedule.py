"""`latchwork schedule`."""

from __future__ import annotations

from contextlib import closing

import pytest

import latchwork
from latchwork.observe.audit import audit_of


@pytest.fixture
def queue(lw):
    assert lw("queue", "create", "reports", "--client", "shop", "--shards", "1").code == 0


def test_a_schedule_is_put_listed_asked_for_its_ticks_and_removed(lw, queue):
    done = lw("schedule", "list", "--client", "shop")
    assert "no schedules of shop" in done.out + done.err
    cron = ("--cron", "0 3 * * *", "--tz", "Europe/Berlin")
    assert lw("schedule", "put", "nightly", "--client", "shop", "--queue", "reports", *cron).code == 0
    (row,) = lw("--json", "schedule", "list", "--client", "shop").json
    assert row == {
        "schedule": "nightly", "queue": "reports", "every_s": None, "cron": "0 3 * * *", "tz": "Europe/Berlin",
        "missed": "last", "last": row["last"], "paused": None, "paused_by": None, "wrong": None,
    }  # fmt: skip
    ticks = lw("--json", "schedule", "next", "nightly", "--client", "shop", "--count", "3").json
    assert len(ticks) == 3
    assert all(tick["tick"].endswith(":00:00+00:00") for tick in ticks)
    assert lw("schedule", "remove", "nightly", "--client", "shop").code == 0
    assert lw("schedule", "remove", "nightly", "--client", "shop").code == 3
    assert lw("schedule", "next", "nightly", "--client", "shop").code == 3


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--cron", "61 * * * *"), "Bad minute", 2),
        (("--every", "0"), "1 s to 366 days", 2),
        (("--every", "1e300"), "--every is", 2),
        (("--every", "60", "--payload", "{"), "not JSON", 2),
        (("--every", "60", "--missed", "no"), "skip, last, all", 2),
        (("--every", "86400", "--tz", "Europe/Berlin"), "since 1970 in UTC; for a time zone give --cron", 2),
        (("--every", "60", "--queue", "nowhere"), "nowhere", 3),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lw, queue, options, said, code):
    done = lw("schedule", "put", "x", "--client", "shop", "--queue", "reports", *options)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_schedule_is_paused_triggered_and_resumed_and_says_so(lw, queue, sqlite_url):
    words = ("nightly", "--client", "shop")
    lw("schedule", "put", *words, "--queue", "reports", "--cron", "0 3 * * *")
    assert lw("schedule", "pause", *words, "--why", "disk").out.strip() == "paused nightly"
    assert "is paused already" in lw("schedule", "pause", *words).out
    (row,) = lw("--json", "schedule", "list", "--client", "shop").json
    assert (bool(row["paused"]), "@" in row["paused_by"]) == (True, True)
    assert " ago by " in lw("schedule", "list", "--client", "shop").out
    assert "nightly is paused by" in lw("schedule", "next", *words).err
    doctor = lw("--json", "doctor", "--client", "shop")
    (found,) = [one for one in doctor.json if one["kind"] == "schedule"]
    assert "schedule nightly of shop: paused by" in found["what"]
    assert found["remedy"] == "latchwork schedule resume nightly --client shop"
    message = lw("schedule", "trigger", *words).out.strip()
    assert message.startswith("nightly@")
    assert lw("--json", "queue", "peek", "reports", "--client", "shop").json[0]["message_id"] == message
    assert lw("schedule", "resume", *words).out.strip() == "resumed nightly"
    assert "is not paused" in lw("schedule", "resume", *words).out
    for verb in ("pause", "resume", "trigger"):
        assert lw("schedule", verb, "absent", "--client", "shop").code == 3
    with closing(latchwork.connect(sqlite_url)) as store:
        found = [(one.what, one.target, one.why, one.outcome) for one in reversed(audit_of(store))]
    assert found[0] == ("put-schedule", "shop/nightly", "", "done")
    assert found[1] == ("pause-schedule", "shop/nightly", "disk", "done")
    assert [one[0] for one in found[3:6]] == ["trigger", "resume-schedule", "resume-schedule"]
    assert {one[3] for one in found[6:]} == {"failed: NOT_FOUND"}


@pytest.mark.parametrize("verb", ["remove", "pause", "resume", "trigger", "next"])
def test_a_mistyped_schedule_is_told_which_one_is_meant_and_which_command_lists_them(lw, queue, verb):
    lw("schedule", "put", "tick", "--client", "shop", "--queue", "reports", "--every", "60")
    done = lw("schedule", verb, "tik", "--client", "shop")
    assert done.code == 3
    assert "no schedule 'tik' of shop in " in done.err
    assert "; is 'tick' meant?; `latchwork schedule list --client shop` shows which there are" in done.err


def test_a_schedule_whose_queue_is_deactivated_is_listed_as_wrong_with_the_remedy(lw, queue):
    lw("schedule", "put", "tick", "--client", "shop", "--queue", "reports", "--every", "60")
    assert [one["wrong"] for one in lw("--json", "schedule", "list", "--client", "shop").json] == [None]
    assert lw("queue", "deactivate", "reports", "--client", "shop", "--confirm", "reports").code == 0
    done = lw("schedule", "list", "--client", "shop")
    assert "its ticks are not published: queue reports is deactivated" in done.out
    assert "tick: latchwork schedule remove tick --client shop; or activate it" in done.err
    assert "latchwork queue activate reports --client shop" in done.err
    doctor = lw("doctor", "--client", "shop")
    assert doctor.code == 1
    assert "schedule tick of shop: its ticks are not published: queue reports is deactivated" in doctor.out
