"""The error tree: stable codes, three answers that are never one another, errors that cross processes."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import latchwork
from latchwork import errors
from latchwork.errors import LatchworkError

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LatchworkError)]

CODES = {
    "LatchworkError": "INTERNAL_ERROR",
    "NotFound": "NOT_FOUND",
    "AlreadyExists": "ALREADY_EXISTS",
    "Expired": "EXPIRED",
    "Refused": "REFUSED",
    "FencedOut": "FENCED_OUT",
    "LeaseLost": "LEASE_LOST",
    "LockUnavailable": "LOCK_UNAVAILABLE",
    "WaitTimeout": "WAIT_TIMEOUT",
    "QueueFull": "QUEUE_FULL",
    "OutcomeUnknown": "OUTCOME_UNKNOWN",
    "Unavailable": "UNAVAILABLE",
    "InvalidRequest": "INVALID_REQUEST",
    "TooManyConsumers": "MAX_ALLOWED_CONSUMERS_EXCEEDED",
    "InvalidShovelInterval": "INVALID_SHOVEL_TIME_INTERVAL",
    "InvalidMessageHandler": "INVALID_MESSAGE_HANDLER",
}


def test_the_published_codes_are_stable():
    assert {name: getattr(errors, name).code for name in CODES} == CODES


def test_no_two_errors_share_a_code():
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes) >= 20


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_is_exported_documented_and_in_the_drawn_tree(kind):
    assert getattr(latchwork, kind.__name__) is kind
    assert kind.__name__ in latchwork.__all__
    assert kind.__doc__
    assert re.search(rf"\b{kind.__name__}\s+{kind.code}\b", errors.__doc__)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_pickles_with_its_message_and_details(kind):
    error = kind("the record s/k is gone: make it again", key=("s", "k"), limit=3)
    error.extra = "set later"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.details, copy.extra) == (kind, str(error), error.details, "set later")


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_without_a_message_says_what_its_class_says(kind):
    assert str(kind()) == kind.__doc__.partition("\n")[0]


def test_absent_refused_and_unknown_are_no_kind_of_one_another():
    answers = (errors.NotFound, errors.Refused, errors.OutcomeUnknown, errors.Unavailable)
    for one in answers:
        assert [issubclass(one, other) for other in answers].count(True) == 1


def test_timeouts_and_bad_requests_are_caught_by_the_names_that_people_know():
    for kind in (errors.LockUnavailable, errors.WaitTimeout):
        assert issubclass(kind, TimeoutError)
    bad = [kind for kind in TREE if issubclass(kind, ValueError)]
    assert set(bad) == {kind for kind in TREE if issubclass(kind, errors.InvalidRequest)}
    assert issubclass(errors.FencedOut, errors.Refused)
