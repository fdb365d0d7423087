"""What the rows of a batch say of themselves, and that each batch verb returns them."""

from __future__ import annotations

import pytest

from latchwork.errors import AlreadyExists, LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable
from latchwork.store import Exists, Key, MemoryStore, Put, Removal, Update
from latchwork.store.rows import Rows, attempted, chunked

ABSENT, REFUSED, AWAY = NotFound("absent"), Refused("refused"), Unavailable("away")


def test_the_first_error_is_raised_that_is_not_harmless():
    rows = Rows([(1,), ABSENT, OutcomeUnknown("first"), Unavailable("second")])
    with pytest.raises(OutcomeUnknown, match="first"):
        rows.raise_unless(NotFound, Refused)
    with pytest.raises(NotFound):
        rows.raise_unless()
    assert rows.raise_unless(LatchworkError) is rows


def test_done_not_done_and_unknown_stay_three_outcomes():
    assert Rows([(), True, False, ABSENT, REFUSED, AWAY]).settled() == [True, True, False, False, False, AWAY]
    there = AlreadyExists("there")
    assert Rows([(), there, ABSENT]).settled(AlreadyExists) == [True, False, ABSENT]


def test_values_and_errors_are_told_apart_by_their_keys():
    rows = Rows(["a", AWAY, "c"])
    assert rows.sift("xyz") == ({"x": "a", "z": "c"}, {"y": AWAY})
    assert (rows.values(None), rows.errors()) == (["a", None, "c"], [AWAY])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rows.sift("xy")


def test_what_follows_is_done_for_the_rows_without_an_error_alone():
    asked = []
    rows = Rows(["a", AWAY, "c"])
    assert rows.then(lambda found: asked.append(dict(found)) or [REFUSED, "C"]) == [REFUSED, AWAY, "C"]
    assert asked == [{0: "a", 2: "c"}]
    assert rows == ["a", AWAY, "c"], "the rows themselves stay"
    assert Rows([AWAY]).then(lambda _: pytest.fail("there is nothing to do")) == [AWAY]


def test_errors_of_a_kind_are_replaced_by_what_comes_of_them():
    rows = Rows([ABSENT, "b", AWAY])
    assert rows.recover(NotFound, lambda errors: [f"made {place}" for place in errors]) == ["made 0", "b", AWAY]
    assert rows.recover(NotFound, lambda _: pytest.fail("there is nothing to recover")) is rows


def test_the_error_of_a_call_is_that_of_each_of_its_rows():
    def fails():
        raise AWAY

    assert attempted(2, fails) == [AWAY, AWAY]
    assert attempted(2, lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        attempted(1, lambda: [1 // 0])


def test_parts_have_all_items_in_order():
    assert [list(part) for part in chunked(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert list(chunked([], 2)) == []


@pytest.mark.parametrize("n", [0, 1, 2])
def test_each_batch_verb_returns_rows_however_many_there_are(n):
    store, keys = MemoryStore(), [Key("rows", str(k)) for k in range(n)]
    updates = [Update(key, (Put("n", 1),), exists=Exists.CREATE) for key in keys]
    removals = [Removal(key) for key in keys]
    for rows in (
        store.operate_many(updates), store.repeat_many(updates),
        store.delete_many(removals), store.delete_many(removals, repeatable=True),
    ):  # fmt: skip
        assert type(rows) is Rows
        assert len(rows) == n
