"""The program that uses this library decodes text as without it, also while a call decodes what is no UTF-8."""

from __future__ import annotations

import codecs
import os
from threading import Event, Thread

import pytest

from latchwork.store.aerospike.text import lenient, strange_bin

BAD = b"a\xff"


@pytest.fixture(autouse=True)
def handler():
    """Python's handler, as it was before the test."""
    before = codecs.lookup_error("strict")
    yield before
    codecs.register_error("strict", before)


def refused():
    with pytest.raises(UnicodeDecodeError):
        BAD.decode()


def test_text_of_a_call_is_decoded_and_the_handler_is_the_programs_own_before_and_after(handler):
    refused()
    with lenient() as strange:
        assert not strange.met
        assert (BAD.decode(), strange.met) == ("a\udcff", True)
    assert codecs.lookup_error("strict") is handler
    refused()


def test_a_bin_with_such_text_is_named_at_any_depth():
    first, bad, last = "\ud800", "a\udcff", "\udfff"
    for value in (first, bad, last, ["a", bad], (bad,), {bad: 1}, {"k": bad}, [[{"k": ["a", [bad]]}]]):
        assert strange_bin({"a": 1, "b": value}) == "b"


def test_a_bin_with_sound_text_is_not_named():
    for value in ("a", "é\ud7ff\ue000", b"\xff", 1, None, ["a", b"\xff"], {"k": "a", "l": ["b"]}):
        assert strange_bin({"a": value}) is None


def test_another_thread_decodes_as_always_meanwhile():
    met = []
    with lenient() as strange:
        thread = Thread(target=lambda: (refused(), met.append(strange.met)))
        thread.start()
        thread.join(30)
    assert met == [False]


def test_the_handler_stays_until_the_last_of_several_calls_has_ended(handler):
    entered, over = Event(), Event()

    def call():
        with lenient():
            entered.set()
            over.wait(30)

    thread = Thread(target=call)
    thread.start()
    assert entered.wait(30)
    with lenient():
        over.set()
        thread.join(30)
        assert BAD.decode() == "a\udcff"
    assert codecs.lookup_error("strict") is handler


def test_a_handler_that_the_program_puts_in_its_place_meanwhile_stays_and_is_asked():
    asked = []
    with lenient():
        below = codecs.lookup_error("strict")
        codecs.register_error("strict", lambda failure: asked.append(1) or below(failure))
        assert BAD.decode() == "a\udcff"
    own = codecs.lookup_error("strict")
    refused()
    with lenient():
        assert BAD.decode() == "a\udcff"
    assert codecs.lookup_error("strict") is own
    refused()
    assert len(asked) == 3, "not where a call decodes, from its second time on"


def test_a_child_that_was_forked_during_a_call_decodes_as_always(handler):
    with lenient():
        child = os.fork()
        if not child:
            os._exit(0 if codecs.lookup_error("strict") is handler else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
