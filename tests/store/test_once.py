"""Exactly once (docs/protocols P1): one test for each hole that it closes, and every single fault at every call."""

from __future__ import annotations

import pytest

from latchwork.errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    StorageFailed,
    Unavailable,
)
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Compute, Exists, Key, MemoryStore, Once, Put, SQLiteStore, exists
from latchwork.store.contract.records import new_key, raises
from latchwork.store.model.expr import SERVER_NOW, ListOf, Param
from latchwork.store.model.form import Form
from latchwork.store.model.ops import writes
from latchwork.store.once import CANCELLED, MAX_FLOORS, TokenClock, time_of
from latchwork.store.port import PolicyView
from latchwork.testing import inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import DOUBTS, CountingStore, Fault, FaultyStore

KEY = Key("s", "k")
ONCE = Once(64, result=Bin("n"))
OPEN = Bin("open").eq(1)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def inner(request, clock, tmp_path):
    store = MemoryStore(clock)
    if request.param == "sqlite":
        store = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    store.operate(KEY, Put("n", 0), Put("open", 1), exists=Exists.CREATE)
    yield store
    store.close()


def count(store):
    return store.get(KEY).bins["n"]


def add(store, once=ONCE, **options):
    return store.operate(KEY, Add("n", 1), once=once, **options)


# ---- what it may be made of


def test_parameters_may_have_any_name(inner):
    guard = Bin("open").eq(Param("token"))
    assert add(inner, when=guard.bind(token=1)) == (1,)
    assert inner.once(Form(Add("n", 1), when=guard, once=ONCE).fill(KEY, token=1)) == (2,)
    with pytest.raises(Refused):
        add(inner, when=guard.bind(token=2))


# ---- what it costs


def test_an_update_that_meets_no_fault_is_one_call(inner):
    store = CountingStore(inner)
    assert [add(store) for _ in range(100)] == [(n,) for n in range(1, 101)]
    assert store.calls == {"operate": 100}
    assert len(inner.get(KEY).bins["ops"]) == 64


# ---- the remembered result


def test_a_lost_reply_is_answered_from_memory_whatever_has_happened_since(inner):
    store, other = FaultyStore(inner), FaultyStore(inner)
    store.plan = {1: "reply_lost", 2: lambda: [add(other) for _ in range(5)]}
    assert add(store) == (1,)
    assert count(inner) == 6


def test_what_is_remembered_is_what_the_caller_needs_to_go_on(inner):
    claim = Once(64, bin="claims", result=ListOf((Bin("from"), Bin("n"))))
    store = FaultyStore(inner, {1: "reply_lost"})
    assert store.operate(KEY, Put("from", Bin("n")), Add("n", 10), once=claim) == ([0, 10],)
    assert store.operate(KEY, Put("from", Bin("n")), Add("n", 5), once=claim) == ([10, 15],)


@pytest.mark.parametrize("result", ["cancelled", CANCELLED, Bin("word", str)], ids=["text", "bytes", "expression"])
def test_a_result_may_be_any_value(inner, result):
    inner.operate(KEY, Put("word", "cancelled"))
    expected = result if isinstance(result, str | bytes) else "cancelled"
    store = FaultyStore(inner, {1: "reply_lost"})
    assert add(store, Once(64, result=result)) == (expected,)
    assert count(inner) == 1


def test_an_answer_that_is_a_bin_is_read_anew_after_doubt(inner):
    store = FaultyStore(inner, {1: "reply_lost"})
    assert add(store, Once(64, answer="n")) == (1,)
    assert add(store, Once(64, answer="n")) == (2,)


def test_an_update_can_be_gone_on_with_by_its_token(inner):
    store = FaultyStore(inner, dict.fromkeys(range(1, 20), "reply_lost"))
    failure = raises(OutcomeUnknown, add, store)
    healthy = FaultyStore(inner)
    assert add(healthy, Once(64, result=Bin("n"), token=failure.details["token"])) == (1,)
    assert count(inner) == 1


# ---- the window


@pytest.mark.parametrize("wrong", [-3600, -0.5, 0.5, 3600])
def test_a_client_whose_clock_is_wrong_neither_is_shut_out_nor_shuts_others_out(inner, clock, wrong):
    skewed, right = FaultyStore(inner, seams=clock.skewed(wrong)), FaultyStore(inner)
    for number in range(200):
        add(skewed if number % 2 else right)
        clock.advance(0.01)
    assert count(inner) == 200
    # The server's time is learned from the first reply, so nobody has to mint twice for long.
    assert skewed.total + right.total <= 204


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_a_clock_that_is_set_in_between_costs_a_second_attempt_and_no_more(inner, clock, wrong):
    store, other = FaultyStore(inner, seams=clock.skewed(0)), FaultyStore(inner)
    for _ in range(70):
        add(other)
        add(store)
    store.seams.seconds = wrong
    for _ in range(70):
        add(other)
        add(store)
    assert count(inner) == 280
    assert store.total + other.total <= 280 + 6


def test_a_token_older_than_the_window_is_minted_again_even_where_nothing_is_retried(inner, clock):
    for _ in range(64):
        add(FaultyStore(inner, seams=clock.skewed(0)))
    late = FaultyStore(inner, seams=clock.skewed(0))
    add(late)
    late.token_clock.learn(late.seams, int(clock.wall() - 3600) * 1000)
    late.policy = RetryPolicy(attempts=1)
    assert add(late) == (66,)
    assert late.total == 4


def test_a_first_attempt_that_lands_after_64_others_does_nothing(inner):
    store, others = FaultyStore(inner, {1: "late", 2: "late", 3: "late"}), FaultyStore(inner)
    raises(OutcomeUnknown, add, store)
    for _ in range(64):
        add(others)
    store.deliver()
    assert count(inner) == 64


def test_a_first_attempt_that_lands_among_the_others_counts_once(inner):
    store, others = FaultyStore(inner, {1: "late", 2: "late", 3: "late"}), FaultyStore(inner)
    raises(OutcomeUnknown, add, store)
    for _ in range(63):
        add(others)
    store.deliver()
    store.deliver()
    assert count(inner) == 64


def test_an_update_that_the_window_forgot_while_in_doubt_is_unknown(inner):
    store, others = FaultyStore(inner), FaultyStore(inner)
    store.plan = {1: "reply_lost", 2: lambda: [add(others) for _ in range(64)]}
    raises(OutcomeUnknown, add, store)
    assert count(inner) == 65


def test_a_token_that_is_outranked_every_time_was_not_applied(inner, clock):
    small = Once(1, result=Bin("n"))
    others, store = FaultyStore(inner, seams=clock.skewed(0)), FaultyStore(inner)
    ahead = [0]

    def outrank():
        ahead[0] += 60
        others.token_clock.learn(others.seams, int(clock.wall() + ahead[0]) * 1000)
        add(others, small)

    add(others, small)
    add(store, small)
    store.plan = dict.fromkeys(range(2, 40), outrank)
    raises(Unavailable, add, store, small)
    assert store.total <= 11
    assert count(inner) == 1 + others.calls["operate"]


# ---- a memory that is damaged


def at(seconds):
    """A token of that time, in seconds since the epoch."""
    return int(seconds * 1_000_000).to_bytes(7, "big") + bytes(10)


def remember(store, *tokens, key=KEY):
    store.operate(key, Put("ops", dict.fromkeys(tokens)), exists=Exists.ANY)


@pytest.fixture(params=["memory", "sqlite", "aerospike"])
def any_store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "any.db", synchronous="off")
        yield made
        made.close()
    else:
        yield request.getfixturevalue("aerospike_store")


def test_a_record_full_of_tokens_of_the_future_fails_alone_and_is_named(any_store):
    store, damaged, sound = any_store, new_key(), new_key()
    remember(store, *(b"\xff" * 7 + bytes([n]) * 10 for n in range(64)), key=damaged)
    store.operate(sound, Put("n", 0), exists=Exists.ANY)
    for _ in range(3):
        failure = raises(Corrupt, store.operate, damaged, Add("n", 1), once=ONCE)
        assert damaged.name in str(failure)
        assert "'ops'" in str(failure)
        assert store.operate(sound, Add("n", 1), once=ONCE)
    now = store.operate(sound, Compute(SERVER_NOW))[0]
    assert all(abs(time_of(token) / 1000 - now) < 60_000 for token in store.get(sound).bins["ops"])
    assert "n" not in store.get(damaged).bins


def test_a_few_tokens_of_the_future_are_not_minted_above(any_store):
    store, key = any_store, new_key()
    store.operate(key, Put("n", 0), exists=Exists.ANY)
    now = store.operate(key, Compute(SERVER_NOW))[0] / 1000
    remember(
        store, *(at(now + 3600 + n) for n in range(60)), *(b"\xff" * 7 + bytes([n]) * 10 for n in range(4)), key=key
    )
    assert store.operate(key, Add("n", 1), once=ONCE) == (1,)
    mine = [token for token in store.get(key).bins["ops"] if token[:1] != b"\xff" and token[7:] != bytes(10)]
    assert [now + 3600 <= time_of(token) / 1e6 < now + 7200 for token in mine] == [True]


@pytest.mark.parametrize(
    "memory", [{"a": 1} | dict.fromkeys(range(63), 1), "text", 7, [1, 2]], ids=["a map", "text", "a number", "a list"]
)
def test_a_memory_that_is_none_is_named(any_store, memory):
    store, key = any_store, new_key()
    store.operate(key, Put("n", 0), Put("ops", memory), exists=Exists.ANY)
    failure = raises(Corrupt, store.operate, key, Add("n", 1), once=ONCE)
    assert key.name in str(failure)
    assert "ops" in str(failure)
    assert store.get(key).bins["n"] == 0


def test_a_floor_is_that_of_one_record(inner, clock):
    other = Key("s", "other")
    inner.operate(other, Put("n", 0), exists=Exists.CREATE)
    remember(inner, *(at(clock.wall() + 3600 + n) for n in range(64)))
    store = CountingStore(inner)
    assert add(store) == (1,)
    store.reset()
    assert [add(store) for _ in range(3)] == [(2,), (3,), (4,)]
    assert store.total == 3
    assert store.operate(other, Add("n", 1), once=ONCE) == (1,)
    assert [time_of(token) / 1e6 for token in inner.get(other).bins["ops"]] == [pytest.approx(clock.wall(), abs=60)]


def test_floors_are_remembered_of_so_many_records(clock):
    minter = TokenClock()
    for n in range(5_000):
        minter.outrank(Key("s", str(n)), at(clock.wall() + 3600))
    assert len(minter._floors) <= MAX_FLOORS
    assert time_of(minter.mint(clock, Key("s", "4999"))) > time_of(at(clock.wall() + 3599))


@pytest.mark.parametrize("days", [2, 40_000, 3_000_000, -2, -40_000])
def test_a_client_whose_clock_is_wrong_by_days_leaves_no_token_of_its_own_time(inner, clock, days):
    store = FaultyStore(inner, seams=clock.skewed(days * 86_400))
    assert [add(store) for _ in range(3)] == [(1,), (2,), (3,)]
    assert store.total <= 6
    times = [time_of(token) / 1e6 for token in inner.get(KEY).bins["ops"]]
    assert [time for time in times if time > clock.wall() + 60] == []


@pytest.mark.parametrize("once", [ONCE, Once(1, result=Bin("n"))])
@pytest.mark.parametrize("learned", ["as it is minted", "as it is sent"])
def test_a_token_of_a_wrong_clock_is_noticed_where_another_thread_has_learned_the_time_since(
    inner, clock, once, learned
):
    others = []

    def meanwhile():
        if not others:
            others.append(None)
            others.append(add(store, once))

    class Interrupted(TokenClock):
        def mint(self, seams, key):
            token = super().mint(seams, key)
            if learned == "as it is minted":
                meanwhile()
            return token

    store = FaultyStore(inner, {1: meanwhile} if learned == "as it is sent" else {}, seams=clock.skewed(2 * 86_400))
    store.token_clock = Interrupted()
    assert add(store, once) == (2,)
    assert others[1:] == [(1,)]
    assert add(store, once) == (3,)
    assert all(time_of(token) / 1e6 <= clock.wall() + 60 for token in inner.get(KEY).bins["ops"])


def test_a_clock_that_leaps_while_the_process_runs_moves_no_token(inner, clock):
    store = FaultyStore(inner, seams=clock.skewed(0))
    add(store)
    store.seams.seconds = 40 * 86_400
    clock.advance(1)
    add(store)
    times = [time_of(token) / 1e6 for token in inner.get(KEY).bins["ops"]]
    assert all(time <= clock.wall() + 1 for time in times)


def later_by(store, key, days):
    """Let the store's client go by a time that is that many days later than this record's."""
    now = store.operate(key, Compute(SERVER_NOW))[0]
    store.token_clock.learn(store.seams, now + days * 86_400_000)
    return now


def test_the_time_of_a_record_that_is_dated_in_the_future_is_not_that_of_another(any_store):
    """As after the server's clock was set back: the other one was filled with tokens of that time."""
    store, key = any_store, new_key()
    store.operate(key, Put("n", 0), exists=Exists.ANY)
    now = later_by(store, key, 2)
    assert [store.operate(key, Add("n", 1), once=ONCE) for _ in range(70)] == [(n,) for n in range(1, 71)]
    assert all(abs(time_of(token) / 1000 - now) < 60_000 for token in store.get(key).bins["ops"])
    later_by(store, key, 2)
    form = Form(Add("n", 1), once=ONCE)
    assert [store.once(form.fill(key)) for _ in range(3)] == [(71,), (72,), (73,)]
    assert all(abs(time_of(token) / 1000 - now) < 60_000 for token in store.get(key).bins["ops"])


def test_after_the_clock_was_set_back_a_client_goes_between_old_records_and_new_ones(inner, clock):
    store, new = CountingStore(inner), Key("s", "new")
    for _ in range(64):
        add(store)
    clock.step(-2 * 86_400)
    inner.operate(new, Put("n", 0), exists=Exists.CREATE)
    store.reset()
    for number in range(1, 101):
        assert store.operate(new, Add("n", 1), once=ONCE) == (number,)
        assert add(store) == (64 + number,)
        clock.advance(2)
    assert store.total <= 200 + 30, "a second attempt now and then"
    assert all(time_of(token) / 1e6 <= clock.wall() + 60 for token in inner.get(new).bins["ops"])


def test_a_record_that_is_made_again_after_the_clock_was_set_back_has_no_floor(inner, clock):
    remember(inner, *(at(clock.wall() + 3600 + n) for n in range(64)))
    store = CountingStore(inner)
    assert add(store) == (1,)
    inner.delete(KEY)
    clock.step(-2 * 86_400)
    inner.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    assert [add(store) for _ in range(3)] == [(1,), (2,), (3,)]
    assert all(time_of(token) / 1e6 <= clock.wall() + 60 for token in inner.get(KEY).bins["ops"])


def test_a_token_that_is_ahead_no_more_when_it_is_looked_at_is_minted_again(inner, clock):
    """The clock was set back by a day, and the server's time goes on between the attempt and the look."""
    store = FaultyStore(inner)
    store.token_clock.learn(store.seams, int(clock.wall() * 1000) + 86_400_000 + 5)
    store.plan = {store._number + 2: lambda: clock.advance(0.01)}
    assert add(store) == (1,)


def test_a_token_that_is_ahead_after_a_lost_request_is_unknown(inner):
    """It cannot be told from one that was applied before the record was made again."""
    store = FaultyStore(inner)
    later_by(store, KEY, 2)
    store.plan = {store._number + 1: "request_lost"}
    raises(OutcomeUnknown, add, store)
    assert count(inner) == 0
    assert add(store) == (1,)


# ---- refusals


def test_a_refusal_that_was_not_final_is_cancelled_before_it_is_said(inner):
    store = FaultyStore(inner, {1: "late"})
    inner.operate(KEY, Put("open", 0))
    raises(Refused, add, store, when=OPEN)
    inner.operate(KEY, Put("open", 1))
    store.deliver()
    assert count(inner) == 0


def test_a_refusal_that_cannot_be_cancelled_is_unknown(inner):
    store = FaultyStore(inner, {1: "late", 4: "late", 5: "late", 6: "late"})
    inner.operate(KEY, Put("open", 0))
    raises(OutcomeUnknown, add, store, when=OPEN)


def test_a_first_attempt_that_lands_between_the_refusal_and_its_cancelling_is_answered(inner):
    store = FaultyStore(inner)

    def open_and_land():
        inner.operate(KEY, Put("open", 1))
        store.deliver()

    inner.operate(KEY, Put("open", 0))
    store.plan = {1: "late", 4: open_and_land}
    assert add(store, when=OPEN) == (1,)
    assert count(inner) == 1


def test_a_refusal_by_a_monotone_guard_needs_no_cancelling(inner):
    store = FaultyStore(inner, {1: "late"})
    inner.operate(KEY, Put("open", 0))
    raises(Refused, add, store, Once(64, monotone=True), when=OPEN)
    assert "ops" not in inner.get(KEY).bins


def test_a_final_refusal_says_whether_an_attempt_was_not_answered(inner):
    """The record may have been deleted and made again meanwhile: then that attempt may have been applied."""
    inner.operate(KEY, Put("open", 0))
    for once in (Once(64, monotone=True), Once(64, goes_on=True)):
        for plan in ({}, {1: "request_lost"}):
            refusal = raises(Refused, add, FaultyStore(inner, plan), once, when=OPEN)
            assert refusal.details["doubt"] is bool(plan)


def test_a_refusal_without_doubt_writes_nothing(inner):
    store = FaultyStore(inner)
    inner.operate(KEY, Put("open", 0))
    raises(Refused, add, store, when=OPEN)
    assert inner.get(KEY).bins == {"n": 0, "open": 0}


# ---- absent


def test_an_absent_record_is_not_found(inner):
    store = FaultyStore(inner)
    inner.delete(KEY)
    raises(NotFound, add, store)
    assert inner.get(KEY) is None


@pytest.mark.parametrize("fault", DOUBTS)
def test_an_absent_record_after_doubt_is_unknown(inner, fault):
    store = FaultyStore(inner, {1: fault, 2: lambda: inner.delete(KEY)})
    raises(OutcomeUnknown, add, store)


@pytest.mark.parametrize("later", [RecordTooBig("x"), StorageFailed("x"), InvalidRequest("x"), Unavailable("x")])
def test_no_failure_of_a_later_attempt_ends_the_doubt(inner, later):
    class Failing(FaultyStore):
        def _operate(self, update):
            if self._number >= 1:
                raise later
            return super()._operate(update)

    raises(OutcomeUnknown, add, Failing(inner, {1: "late"}))
    raises(type(later), add, _always(inner, later))


@pytest.mark.parametrize("later", [Corrupt("x"), StorageFailed("x"), RecordTooBig("x"), Unavailable("x")])
def test_no_failure_of_a_repeat_ends_the_doubt_of_a_repeatable_call(inner, later):
    class Failing(FaultyStore):
        def _call(self, verb, request, *rest):
            if self._number >= 1:
                raise later
            return super()._call(verb, request, *rest)

    raises(OutcomeUnknown, Failing(inner, {1: "reply_lost"}).operate, KEY, Put("n", 1), repeatable=True)
    raises(OutcomeUnknown, Failing(inner, {1: "reply_lost"}).delete, KEY, repeatable=True)
    raises(type(later), _always(inner, later).operate, KEY, Put("n", 1), repeatable=True)


def _always(inner, failure):
    class Failing(FaultyStore):
        def _operate(self, update):
            raise failure

    return Failing(inner)


# ---- creating


@pytest.mark.parametrize("kind", [Exists.ANY, Exists.CREATE])
@pytest.mark.parametrize("fault", ["reply_lost", "late", "request_lost", "duplicate", "dropped"])
def test_a_record_is_made_once(inner, kind, fault):
    inner.delete(KEY)
    store = FaultyStore(inner, {1: fault})
    assert add(store, exists=kind) == (1,)
    store.deliver()
    assert count(inner) == 1


def test_a_record_that_somebody_else_made_exists_already(inner):
    raises(AlreadyExists, add, FaultyStore(inner), exists=Exists.CREATE)
    raises(AlreadyExists, add, FaultyStore(inner, {1: "request_lost"}), exists=Exists.CREATE)
    assert count(inner) == 0


def test_a_memory_of_no_tokens_is_refused_before_any_call(inner):
    store = FaultyStore(inner)
    raises(InvalidRequest, lambda: add(store, Once(0)))
    assert store.total == 0


# ---- every fault at every call


SHAPES = {
    "open": (ONCE, None, 1),
    "guarded": (ONCE, OPEN, 1),
    "shut": (ONCE, OPEN, 0),
    "plain": (Once(64), exists("n"), 1),
    "answer": (Once(64, answer="n"), OPEN, 1),
    "tiny": (Once(1, result=Bin("n")), None, 1),
    "monotone": (Once(64, monotone=True), exists("n"), 1),
}


def test_a_full_map_of_other_keys_than_tokens_is_damaged(inner):
    inner.operate(KEY, Put("ops", {1: None, 2: None}))
    raises(Corrupt, inner.operate, KEY, Add("n", 1), once=Once(2))
    assert inner.get(KEY).bins["n"] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_at_whatever_call_it_is_struck_the_update_happens_once_or_not_at_all_as_answered(shape):
    """Two faults at a time, and others meanwhile, are the simulation's."""
    once, when, opened = SHAPES[shape]
    said = []

    def work(store, done):
        said[:] = ["crash"]
        try:
            said[:] = [add(store, once, when=when)]
        except LatchworkError as failure:
            said[:] = [type(failure)]

    def others(store, done):
        said.append(count(store))
        store.operate(KEY, Put("open", 1))

    def check(store):
        answer, early = said
        final = count(store)
        assert final in (0, 1)
        if isinstance(answer, tuple):
            assert (early, final) == (1, 1)
        elif answer in (Refused, NotFound, Unavailable):
            assert final == 0
        else:
            assert answer in (OutcomeUnknown, "crash")

    report = inject_everywhere(
        work,
        prepare=lambda store: store.operate(KEY, Put("n", 0), Put("open", opened), exists=Exists.CREATE),
        recover=others,
        check=check,
    )
    assert not report.troubles, report


def test_a_fault_names_its_kind():
    store = FaultyStore(MemoryStore(), {1: Fault("reply_lost")})
    assert "reply_lost" in str(raises(OutcomeUnknown, store.operate, KEY, Put("n", 1), exists=Exists.ANY))


class Mute(PolicyView):
    """A store that takes writes and answers no reads."""

    failure: LatchworkError

    def _operate(self, update):
        if writes(update.ops):
            return super()._operate(update)
        raise self.failure


@pytest.mark.parametrize("failure", [Unavailable("no reply came"), StorageFailed("x"), Corrupt("x")])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_refusal_that_settles_nothing_and_cannot_be_looked_into_is_unknown(goes_on, failure):
    store, key = MemoryStore(ManualClock()), Key("s", "k")
    store.operate(key, Put("n", 1), exists=Exists.CREATE)
    once = Once(8, answer="n", goes_on=goes_on)
    mute = Mute(store, RetryPolicy(attempts=1))
    mute.failure = failure
    with pytest.raises(OutcomeUnknown if goes_on else type(failure)):
        mute.operate(key, Add("n", -2), when=Bin("n") >= 2, once=once)
    assert store.get(key).bins == {"n": 1}


@pytest.mark.parametrize("capacity", [2**31, 2**63 - 1])
def test_a_memory_larger_than_a_server_can_keep_is_refused(capacity):
    """An Aerospike client cuts the number to 32 bits: tokens would be removed that are to be remembered."""
    with pytest.raises(InvalidRequest, match=r"1 to 2,147,483,647"):
        Once(capacity)


def test_the_time_of_a_server_goes_on_between_two_replies():
    seams, clock = ManualClock(), TokenClock()
    assert clock.server_ms(seams) is None
    seams.advance(5)
    clock.learn(seams, 70_000)
    seams.advance(10)
    seams.step(3_600)
    assert clock.server_ms(seams) == 80_000, "the wall clock here does not matter"
