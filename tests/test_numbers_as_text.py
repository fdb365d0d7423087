"""A number that comes as text: Python refuses to read one of more than 4,300 digits, and no caller meets that."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.inputs import whole_of
from latchwork.spark.options import parse

LONG = "9" * 5_000
SOURCE = {"store": "sqlite:/nowhere/q.db", "queue": "q", "clientId": "c"}


def test_a_text_is_a_whole_number_or_none():
    assert [whole_of(text) for text in ("7", "007", "", "-1", "1.0", "x", LONG)] == [7, 7, *[None] * 5]


@pytest.mark.parametrize(
    "option", ["maxMessagesPerBatch", "maxBytesPerBatch", "minMessagesPerBatch", "publishBatch", "shards"]
)
def test_an_option_of_the_source_with_too_many_digits_is_refused_by_its_name(option):
    with pytest.raises(InvalidRequest, match=option):
        parse({**SOURCE, option: LONG})


def test_a_delay_with_too_many_digits_is_refused_by_its_name():
    with pytest.raises(InvalidRequest, match="maxTriggerDelay"):
        parse({**SOURCE, "minMessagesPerBatch": "2", "maxTriggerDelay": f"{LONG}s"})
