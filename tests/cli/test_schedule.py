"""`latchwork schedule`."""

from __future__ import annotations

import pytest


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
        "missed": "last",
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
        (("--every", "86400", "--tz", "Europe/Berlin"), "since 1970 in UTC; give --cron", 2),
        (("--every", "60", "--queue", "nowhere"), "nowhere", 3),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lw, queue, options, said, code):
    done = lw("schedule", "put", "x", "--client", "shop", "--queue", "reports", *options)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
