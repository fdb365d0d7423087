"""Every failure that the client can report has a verdict and one of our errors; none of its own ever escapes."""

from __future__ import annotations

import inspect
import pickle

import pytest
from aerospike import exception as driver

from latchwork.errors import (
    AlreadyExists,
    BinMismatch,
    InvalidRequest,
    LatchworkError,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unavailable,
)  # fmt: skip
from latchwork.retry import again, reason
from latchwork.store.aerospike.results import VERDICTS, ClientFault, Verdict, error_of, fault_of, verdict_of

CLASSES = [found for _, found in inspect.getmembers(driver, inspect.isclass) if issubclass(found, Exception)]
NEVER_APPLIED = [-6, -7, -8, -10, -11, -14, 7, 11, 14, 18, 32, 66, 83, 120, 121, 151, 152, 8]
DEFINITE = [2, 3, 5, 6, 17, 23, 24, 27, 28, 126, 127, -18, -19]
IN_DOUBT = [1, 100, 122, -15, -16, -17]
PERMANENT = [
    *(-1, -5, -9, -12, -2, -4, -20, 4, 10, 12, 13, 16, 19, 20, 21, 25, 26, 29),
    *(51, 52, 53, 54, 55, 56, 60, 61, 62, 63, 64, 65, 70, 71, 72, 73, 74, 75, 80, 81, 82),
    *(123, 124, 125, 150, 160, 200, 201, 202, 203, 204, 205, 206, 1301, 1302),
]
READS_ONLY = [-3, 50, 15, 210, 211, 212, 213]
CODES = [*NEVER_APPLIED, *DEFINITE, *IN_DOUBT, *PERMANENT, *READS_ONLY, 9, 22]


def write(code, in_doubt=False, **more):
    return error_of(ClientFault(code, in_doubt, "said", **more), "the record", write=True)


def read(code, **more):
    return error_of(ClientFault(code, False, "said", **more), "the record", write=False)


def test_the_table_has_every_documented_code_and_no_other():
    assert sorted(VERDICTS) == sorted(CODES)


@pytest.mark.matrix
@pytest.mark.parametrize("code", CODES)
def test_a_write_in_doubt_is_unknown_whatever_the_code(code):
    assert type(write(code, in_doubt=True)) is OutcomeUnknown


@pytest.mark.parametrize("code", NEVER_APPLIED)
def test_what_was_never_applied_may_be_sent_again(code):
    for error in (write(code), write(code, row=True), read(code)):
        assert type(error) is Unavailable
        assert again(error)


@pytest.mark.parametrize("code", DEFINITE)
def test_a_definite_answer_is_never_sent_again(code):
    for error in (write(code), read(code)):
        assert isinstance(error, NotFound | AlreadyExists | Refused)
        assert not again(error)


@pytest.mark.parametrize("code", IN_DOUBT)
def test_a_code_in_doubt_is_unknown_for_a_write_and_harmless_for_a_read(code):
    assert type(write(code)) is OutcomeUnknown
    assert type(write(code, row=True)) is OutcomeUnknown
    assert again(read(code))


@pytest.mark.matrix
@pytest.mark.parametrize("code", PERMANENT)
def test_a_permanent_failure_is_never_sent_again(code):
    for error in (write(code), read(code)):
        assert isinstance(error, InvalidRequest | Misconfigured)
        assert not again(error)


@pytest.mark.parametrize("code", READS_ONLY)
def test_codes_of_reads_may_be_sent_again_for_reads_only(code):
    assert again(read(code))
    assert type(write(code)) is OutcomeUnknown


@pytest.mark.parametrize("code", [999, -999, 42])
def test_an_unknown_code_is_in_doubt_on_a_write_only(code):
    assert type(write(code)) is OutcomeUnknown
    assert type(read(code)) is Unavailable


def test_a_timeout_says_nothing_about_a_row_and_that_nothing_was_sent_for_a_record():
    assert type(write(9)) is Unavailable
    assert type(write(9, row=True)) is OutcomeUnknown
    assert type(read(9)) is Unavailable
    assert type(read(9, row=True)) is Unavailable


def test_a_refused_ttl_names_the_setting_and_a_passing_refusal_may_be_tried_again():
    refused = error_of(ClientFault(22), "the record", write=True, no_ttl=True)
    assert type(refused) is Misconfigured
    assert "nsup-period" in str(refused)
    assert type(write(22)) is Unavailable
    assert verdict_of(ClientFault(22), write=True) is Verdict.CONDITIONAL


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, NotFound), (5, AlreadyExists), (27, Refused), (24, Refused), (13, RecordTooBig), (26, BinMismatch),
     (12, BinMismatch), (4, InvalidRequest), (20, Misconfigured), (80, Misconfigured), (-2, InvalidRequest)],
)  # fmt: skip
def test_codes_with_an_error_of_their_own(code, kind):
    assert type(write(code)) is kind


def test_a_hot_key_is_named_with_advice_and_a_full_device_asks_for_a_long_pause():
    assert "the record" in str(write(14))
    assert "shards" in str(write(14))
    assert write(8).slow
    assert not write(14).slow


@pytest.mark.parametrize(
    ("code", "why"), [(8, "overloaded"), (14, "overloaded"), (18, "overloaded"), (83, "overloaded"), (7, "not_applied")]
)
def test_a_request_is_sent_again_as_overloaded_where_too_much_was_asked(code, why):
    assert reason(write(code)) == reason(read(code)) == reason(pickle.loads(pickle.dumps(write(code)))) == why


@pytest.mark.matrix
@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("message", ["", "said"])
@pytest.mark.parametrize("code", [*(code for code in CODES if code < 0), -999, 9])
def test_no_server_is_said_to_have_refused_what_the_client_gave_up(code, message, writing):
    text = str(error_of(ClientFault(code, message=message), "the record", write=writing))
    assert "server refused" not in text
    assert ("the client failed" in text) == (code == -999)
    assert (f"said, code {code})" if message else f"(code {code})") in text


@pytest.mark.parametrize(
    ("code", "remedy"), [(-15, "runs"), (-10, "runs"), (-8, "runs"), (-14, "runs"), (-7, "option")]
)
def test_what_the_client_could_not_send_comes_with_a_remedy(code, remedy):
    assert remedy in str(read(code)).partition("; ")[2]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("writing", [True, False])
def test_every_exception_of_the_client_becomes_one_of_ours(kind, writing):
    code = kind.code if isinstance(kind.code, int) else 1
    failure = kind(code, "it said so", "file.c", 1, False)
    error = error_of(fault_of(failure), "the record", write=writing)
    assert isinstance(error, LatchworkError)
    assert code in VERDICTS
    again_here = pickle.loads(pickle.dumps(error))
    assert (type(again_here), str(again_here)) == (type(error), str(error))


@pytest.mark.parametrize("said", ["127.0.0.1:3000 AEROSPIKE_OK", "127.0.0.1:3000 AEROSPIKE_ERR_CLUSTER", ""])
def test_a_server_that_starts_is_said_to_serve_nothing_yet_with_a_remedy(said):
    text = str(error_of(ClientFault(11, message=said), "the record", write=True))
    what, _, remedy = text.partition("; ")
    assert "does not serve it now (" in what
    assert "starts" in remedy


def test_a_fault_is_read_from_the_arguments_not_from_the_class():
    first = driver.TimeoutError(9, "mine", "file.c", 1, True)
    driver.TimeoutError.code, driver.TimeoutError.in_doubt = -1, False
    try:
        assert fault_of(first) == ClientFault(9, in_doubt=True, message="mine")
    finally:
        driver.TimeoutError.code, driver.TimeoutError.in_doubt = 9, None


@pytest.mark.parametrize("failure", [TypeError("no"), ValueError("no"), UnicodeEncodeError("utf-8", "x", 0, 1, "no")])
def test_a_builtin_failure_was_raised_before_anything_was_sent(failure):
    assert type(error_of(fault_of(failure), "the record", write=True)) is InvalidRequest


@pytest.mark.parametrize("failure", [driver.AerospikeError(), driver.ParamError("text only")])
def test_an_exception_that_says_nothing_leaves_a_write_in_doubt(failure):
    assert type(error_of(fault_of(failure), "the record", write=True)) is OutcomeUnknown
