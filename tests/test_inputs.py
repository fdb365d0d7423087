"""What locks, elections, latches and queues are given is checked alike."""

from __future__ import annotations

import math
import threading

import pytest

from latchwork.errors import InvalidRequest
from latchwork.inputs import checked_seconds, checked_timeout


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**300, threading.TIMEOUT_MAX * 2])
def test_a_timeout_longer_than_one_can_wait_is_for_ever(timeout):
    assert checked_timeout(timeout) is None


@pytest.mark.parametrize("timeout", [None, 0, 1, 0.5, threading.TIMEOUT_MAX])
def test_a_timeout_that_one_can_wait_stays(timeout):
    assert checked_timeout(timeout) is timeout


def test_a_timeout_that_is_no_number_of_seconds_is_refused():
    for timeout in (10**400, 10**5000, -(10**5000), -1, math.nan, True, "1"):
        with pytest.raises(InvalidRequest, match=r"timeout is .*None for no limit"):
            checked_timeout(timeout)


def test_a_length_of_time_without_an_upper_limit_may_be_a_number_that_no_float_holds():
    assert checked_seconds("age", 10**400, 0) == 10**400
    with pytest.raises(InvalidRequest, match="age is -1; it must be seconds, or a timedelta, of 0 or more"):
        checked_seconds("age", -1, 0)
