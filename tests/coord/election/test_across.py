"""One leader over all farms: its epoch is above all earlier ones in every farm's store before work starts."""

from __future__ import annotations

import threading
import uuid

import pytest
from kazoo.client import KazooClient

from latchwork.coord import GlobalElection
from latchwork.coord.lock import LOCKS
from latchwork.errors import Corrupt, FencedOut, InvalidRequest, StorageFailed, Unavailable, WaitTimeout
from latchwork.retry import RetryPolicy
from latchwork.seams import Seams
from latchwork.store import Add, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.model.ops import writes
from latchwork.testing.stores import FaultyStore, Outage
from tests.coord.election.test_zookeeper import LONG, Pipe, connected, expire
from tests.support.waiting import until
from tests.support.zoo import Client, Zoo

OFFICE, RESOURCE = Key(LOCKS, "office"), Key("resources", "r")
FOR_EVER = float("inf")


class Behind(Seams):
    """The clock of a farm that is an hour late."""

    def wall(self):
        return super().wall() - 3600


class Farm(FaultyStore):
    """A farm's store, which can be cut off from everybody, or be full for some records: it only answers their reads."""

    def __init__(self, inner):
        super().__init__(inner, Outage(inner.seams, FOR_EVER, FOR_EVER))
        self.policy = RetryPolicy(attempts=1)
        self.is_full_for, self.refused = frozenset(), 0

    def _operate(self, update):
        if update.key in self.is_full_for and writes(update.ops):
            self.refused += 1
            raise StorageFailed("the disk is full")
        return super()._operate(update)

    def cut_off(self):
        self.plan.begin = 0

    def heal(self):
        self.plan.begin = FOR_EVER

    def fence(self):
        record = self.inner.get(Key(LOCKS, "office"))
        return record.bins["fencing-ctr"] if record else None


@pytest.fixture
def zoo():
    return Zoo()


@pytest.fixture
def farms(tmp_path):
    made = {"iad": Farm(MemoryStore()), "lhr": Farm(SQLiteStore(tmp_path / "lhr.db", synchronous="normal"))}
    yield made
    made["lhr"].close()


@pytest.fixture
def candidate(zoo, farms):
    """Makes candidates for one office, each on a client of its own of a ZooKeeper in this process."""
    made = []

    def make(farm, *, name=None, stores=farms, **rest):
        one = GlobalElection(
            stores, "office", zookeeper=KazooClient("h:1"), farm_id=farm, candidate=name or f"c{len(made)}", **rest
        )
        one._client = one._line.client = Client(zoo, session=1 + len(made))
        made.append(one)
        return one

    yield make
    for one in made:
        assert one.stop()


# ---- the epoch


def test_the_epoch_is_sealed_in_every_farm_and_every_resource_before_work_starts(candidate, farms):
    def seen(leadership):
        fences = [farm.fence() for farm in farms.values()]
        return leadership.epoch, fences + [farm.get(RESOURCE).bins["fence"] for farm in farms.values()]

    epoch, fences = candidate("iad", resources=[RESOURCE]).run(seen, timeout=20)
    assert fences == [epoch] * 4


def test_a_deposed_farm_is_refused_by_its_own_store(candidate, farms):
    first, second = (candidate(farm, resources=[RESOURCE]) for farm in ("iad", "lhr"))
    first.start()
    old = until(lambda: first.leadership)
    old.operate(RESOURCE, Put("n", 1))
    # Paused for so long that it does not know: belief is what `check` asks, so it is taken out of the way.
    old.check = lambda: None
    second.start()
    first.stop()
    new = until(lambda: second.leadership)
    assert new.epoch > old.epoch
    with pytest.raises(FencedOut) as refused:
        old.operate(RESOURCE, Put("n", 2))
    assert refused.value.details["seen"] == new.epoch
    assert farms["iad"].get(RESOURCE).bins["n"] == 1


def test_a_leader_steps_down_for_an_operator_of_any_farm_and_the_next_epoch_is_above_all(candidate, farms):
    first, second = candidate("iad", lease=6), candidate("lhr")
    first.start()
    old = until(lambda: first.leadership)
    second.start()
    until(lambda: len(second.contenders()) == 2)
    assert candidate("lhr").step_down(old.epoch)
    assert not candidate("lhr").step_down(old.epoch)
    assert old.lost.wait(10)
    new = until(lambda: second.leadership)
    assert new.epoch > old.epoch
    assert {farm.fence() for farm in farms.values()} == {new.epoch}
    farms["iad"].cut_off()
    with pytest.raises(Unavailable):
        candidate("iad").step_down(old.epoch)
    farms["iad"].heal()
    assert candidate("iad").step_down(new.epoch)


def test_sealing_a_farm_ends_a_term_that_its_record_still_shows(candidate, farms):
    first, second = candidate("iad"), candidate("lhr")
    first.start()
    until(lambda: first.leadership)
    grant = first._grant
    second.start()
    first._line.leave()  # ZooKeeper has ended its session, and the leader has not heard of it
    until(lambda: second.leadership)
    with pytest.raises(FencedOut):
        grant.renew()


def test_epochs_grow_from_farm_to_farm_whatever_their_clocks_say(candidate):
    stores = {"iad": Farm(MemoryStore()), "lhr": Farm(MemoryStore(Behind()))}
    first = candidate("iad", stores=stores).run(lambda leadership: leadership.epoch, timeout=20)
    later = candidate("lhr", stores=stores).run(lambda leadership: leadership.epoch, timeout=20)
    assert later > first


@pytest.mark.parametrize("kept", [b"nonsense", b"1000000000000000000", b"576460752303423489"])
def test_a_line_that_keeps_no_epoch_is_reported(candidate, zoo, kept):
    zoo.kept = kept
    with pytest.raises(Corrupt, match=kept.decode()):
        candidate("iad").run(lambda leadership: None, timeout=20)


DAMAGED = [2**62 + 5, 2**61, 2**59 + 1, "x", 1.5, [7]]


@pytest.mark.parametrize("fence", DAMAGED)
@pytest.mark.parametrize("where", [Key(LOCKS, "office"), RESOURCE])
def test_a_damaged_farm_is_named_and_its_fence_is_taken_over_by_no_other(  # noqa: PLR0917 - fixtures
    candidate, farms, zoo, caplog, fence, where
):
    bin = "fence" if where == RESOURCE else "fencing-ctr"
    farms["lhr"].operate(where, Put(bin, fence), exists=Exists.ANY)
    one = candidate("iad", resources=[RESOURCE])
    one.start()
    leadership = until(lambda: one.leadership)
    assert leadership.epoch < 2**58
    assert farms["iad"].fence() == int(zoo.kept) == leadership.epoch
    assert one.unsealed == {"lhr"}
    assert f"{where.set}/{where.name}" in caplog.text
    farms["lhr"].delete(where)
    until(lambda: not one.unsealed)
    assert farms["lhr"].fence() == leadership.epoch


@pytest.mark.parametrize("fence", DAMAGED)
def test_a_candidate_whose_own_farm_is_damaged_says_so_and_keeps_nobody_else_from_the_office(candidate, farms, fence):
    farms["lhr"].operate(Key(LOCKS, "office"), Put("fencing-ctr", fence), exists=Exists.ANY)
    with pytest.raises(Corrupt, match="latchwork_locks/office"):
        candidate("lhr").run(lambda leadership: None, timeout=20)
    assert candidate("iad").run(lambda leadership: leadership.epoch, timeout=20) < 2**58


# ---- farms that cannot be reached


def test_work_starts_without_a_farm_that_is_cut_off_but_not_in_silence(candidate, farms, caplog):
    farms["lhr"].cut_off()
    one = candidate("iad", resources=[RESOURCE])
    one.start()
    leadership = until(lambda: one.leadership)
    assert one.unsealed == {"lhr"}
    assert "not sealed in ['lhr']" in caplog.text
    farms["lhr"].heal()
    until(lambda: not one.unsealed)
    assert farms["lhr"].fence() == farms["lhr"].get(RESOURCE).bins["fence"] == leadership.epoch


def test_a_term_ends_where_a_farm_that_is_back_has_seen_a_later_epoch(candidate, farms):
    farms["lhr"].cut_off()
    one = candidate("iad")
    one.start()
    old = until(lambda: one.leadership)
    later = old.epoch + 10**9
    farms["lhr"].inner.operate(Key(LOCKS, "office"), Put("fencing-ctr", later), Put("locked", 0), exists=Exists.ANY)
    farms["lhr"].heal()
    assert old.lost.wait(20)
    assert until(lambda: one.leadership).epoch > later


def test_a_farm_that_answers_for_a_term_that_is_over_is_sealed_for_the_next_one(candidate, farms, monkeypatch):
    lhr, asked, may_answer = farms["lhr"], threading.Event(), threading.Event()
    lhr.cut_off()
    one = candidate("iad")
    one.start()
    old = until(lambda: one.leadership)

    def late(update):
        monkeypatch.undo()
        asked.set()
        assert may_answer.wait(20)
        return lhr.inner._operate(update)

    monkeypatch.setattr(lhr, "_operate", late)
    assert asked.wait(20)
    sealing = one._sealer
    assert one.resign()
    new = until(lambda: one.leadership)
    may_answer.set()
    sealing.join(20)
    assert lhr.fence() == old.epoch
    assert one.unsealed == {"lhr"}
    lhr.heal()
    until(lambda: lhr.fence() == new.epoch)
    until(lambda: not one.unsealed)


def test_nobody_leads_while_a_farm_is_cut_off_where_all_are_asked_for(candidate, farms):
    farms["lhr"].cut_off()
    one = candidate("iad", all_farms=True)
    one.start()
    until(lambda: one._passed)  # else it may not know yet why
    with pytest.raises(WaitTimeout, match=r"cannot be sealed in \['lhr'\]"):
        one.run(lambda leadership: None, timeout=0.5)
    assert one.stop()
    assert farms["iad"].get(Key(LOCKS, "office")).bins["locked"] == 0
    farms["lhr"].heal()
    assert one.run(lambda leadership: one.unsealed, timeout=20) == frozenset()


def test_a_candidate_whose_own_farm_cannot_be_sealed_leaves_the_office_to_others(candidate, farms):
    first, second = candidate("iad"), candidate("lhr")
    farms["iad"].cut_off()
    first.start()
    second.start()
    until(lambda: second.leadership)
    assert first.leadership is None
    assert second.unsealed == {"iad"}


# ---- preferred farms


def test_a_preferred_farm_that_is_back_takes_over_between_two_works_never_during_one(candidate):
    first, second = (candidate(farm, prefer=["iad", "lhr"]) for farm in ("lhr", "iad"))
    works, begun, go_on = [], threading.Event(), threading.Event()

    def job(leadership):
        begun.set()
        assert go_on.wait(20)
        works.append(leadership.lost.is_set())

    runner = threading.Thread(target=first.run_in_one_farm, args=[job])
    runner.start()
    assert begun.wait(20)
    assert first.gives_way_to() is None
    second.start()
    until(lambda: first.gives_way_to() == "iad")
    assert second.leadership is None
    go_on.set()
    assert until(lambda: second.leadership).candidate.startswith("iad/")
    assert works == [False], "the work was done to its end, and no other was begun"
    assert until(lambda: len(second.contenders()) == 2), "the farm that gave way takes part again"
    assert second.gives_way_to() is None
    first.stop()
    runner.join(20)


def test_a_preferred_farm_does_not_wait_for_the_pause_between_two_works(candidate):
    first, second = (candidate(farm, prefer=["iad", "lhr"]) for farm in ("lhr", "iad"))
    works = []

    def work():
        first.run_in_one_farm(lambda leadership: works.append(leadership.epoch), every=3600)

    runner = threading.Thread(target=work)
    runner.start()
    until(lambda: works)
    second.start()
    until(lambda: second.leadership)
    assert len(works) == 1
    first.stop()
    runner.join(20)


@pytest.fixture
def in_background():
    """Starts `run_in_one_farm` of a candidate, and returns the epochs of its calls, as they are made."""
    running = []

    def start(one, job=lambda leadership: None, **rest):
        epochs = []

        def call(leadership):
            epochs.append(leadership.epoch)
            return job(leadership)

        thread = threading.Thread(target=one.run_in_one_farm, args=[call], kwargs=rest)
        thread.start()
        running.append((one, thread))
        return epochs

    yield start
    for one, thread in running:
        one.stop()
        thread.join(20)


@pytest.mark.parametrize("full_for", [[OFFICE], [RESOURCE], [OFFICE, RESOURCE]])
def test_nobody_gives_way_again_and_again_to_a_preferred_farm_whose_store_refuses_writes(
    candidate, farms, in_background, full_for
):
    first, second = (candidate(farm, prefer=["iad"], resources=[RESOURCE]) for farm in ("iad", "lhr"))
    iad = farms["iad"]
    iad.is_full_for = frozenset(full_for)
    first.start()
    until(lambda: first._passed)
    works = in_background(second, every=3600)
    until(lambda: works)
    tried = iad.refused
    until(lambda: iad.refused >= tried + 6)
    assert len(works) == 1
    assert second.contenders() == [second.candidate]
    assert second.leadership.epoch == works[0], "no later term was needed"
    iad.is_full_for = frozenset()
    assert until(lambda: first.leadership).epoch > works[0], "it leads once its store takes writes again"


def test_a_candidate_whose_store_refuses_writes_does_not_enter_the_line(candidate, farms, zoo):
    first = candidate("iad")
    farms["iad"].is_full_for = frozenset([OFFICE])
    first.start()
    until(lambda: farms["iad"].refused >= 2)
    assert zoo.made == 0
    farms["iad"].is_full_for = frozenset()
    until(lambda: first.leadership)


def test_a_candidate_that_needs_all_farms_stays_out_of_the_line_while_one_cannot_be_sealed(candidate, farms, zoo):
    one = candidate("iad", all_farms=True, resources=[RESOURCE])
    farms["lhr"].is_full_for = frozenset([RESOURCE])
    one.start()
    until(lambda: farms["lhr"].refused >= 3)
    assert zoo.made == 1, "it has entered once, and found that it cannot lead"
    farms["lhr"].is_full_for = frozenset()
    assert until(lambda: one.leadership).epoch == farms["lhr"].get(RESOURCE).bins["fence"]


def test_a_seal_that_is_tried_again_is_harmless_where_a_later_leader_has_sealed_the_record(candidate, farms):
    first, second = (candidate(farm, resources=[RESOURCE]) for farm in ("iad", "lhr"))
    farms["iad"].is_full_for = frozenset([RESOURCE])
    first.start()
    until(lambda: first._passed)
    second.start()
    leadership = until(lambda: second.leadership)
    farms["iad"].inner.operate(RESOURCE, Put("fence", leadership.epoch), exists=Exists.ANY)  # it was the first to do so
    farms["iad"].is_full_for = frozenset()
    until(lambda: not second.unsealed and len(second.contenders()) == 2)
    assert leadership is second.leadership
    leadership.check()
    assert {farm.get(RESOURCE).bins["fence"] for farm in farms.values()} == {leadership.epoch}


def looks_in_its_term(one, epoch, monkeypatch):
    """Wait until this candidate has led with a later epoch than this, and has looked twice whether it gives way."""
    looks, gives_way_to = [], one.gives_way_to

    def look():
        leadership = one.leadership
        looks.extend([leadership.epoch] if leadership is not None and leadership.epoch > epoch else [])
        return gives_way_to()

    monkeypatch.setattr(one, "gives_way_to", look)
    until(lambda: len(looks) >= 2)


def test_the_pause_between_two_works_goes_on_in_the_next_term_of_a_candidate(candidate, in_background, monkeypatch):
    first, second = (candidate(farm, prefer=["iad"]) for farm in ("iad", "lhr"))
    works = in_background(second, every=3600)
    until(lambda: works)
    first.start()
    until(lambda: first.leadership)
    first.stop()
    looks_in_its_term(second, works[0], monkeypatch)
    assert len(works) == 1


def test_a_work_whose_term_was_lost_is_begun_again_without_a_pause(candidate, in_background):
    one, works = candidate("iad"), []

    def job(leadership):
        works.append(leadership.epoch)
        if len(works) == 1:
            leadership.lost.set()  # it may have been cut short

    in_background(one, job, every=3600)
    until(lambda: len(works) == 2)


def test_the_first_in_line_lets_a_preferred_farm_go_first(candidate):
    held, other, preferred = (candidate(farm, prefer=["iad"], name=farm) for farm in ("lhr", "lhr", "iad"))
    held.start()
    until(lambda: held.leadership)
    other.start()
    until(lambda: len(held.contenders()) == 2)
    preferred.start()
    until(lambda: len(held.contenders()) == 3)
    held.stop()
    until(lambda: preferred.leadership or other.leadership)
    assert other.leadership is None
    until(lambda: preferred.contenders() == ["iad/iad", "lhr/lhr"])


def test_farms_that_are_not_preferred_do_not_take_turns(candidate):
    first, second = candidate("iad"), candidate("lhr")
    works = []

    def job(leadership):
        works.append(leadership.epoch)
        if len(works) == 1:
            second.start()
            until(lambda: len(second.contenders()) == 2)
        if len(works) == 5:
            first._stop.set()
            first._end_term()

    assert first.run_in_one_farm(job, timeout=20) == 5
    assert len(set(works)) == 1


def test_a_job_that_fails_ends_its_term_and_another_one_begins(candidate):
    one = candidate("iad")
    epochs = []

    def job(leadership):
        epochs.append(leadership.epoch)
        if len(epochs) == 1:
            raise ValueError("as a job may")
        one._stop.set()
        one._end_term()

    assert one.run_in_one_farm(job, timeout=20) == 1
    assert epochs[1] > epochs[0]


def test_run_in_one_farm_ends_with_its_timeout(candidate):
    one = candidate("iad")
    lost = []
    # Where it was not elected in time, it is asked again.
    until(lambda: one.run_in_one_farm(lambda leadership: lost.append(leadership.lost.wait(20)), timeout=1) == 1)
    assert lost == [True]
    one.start()
    with pytest.raises(InvalidRequest, match="takes part already"):
        one.run_in_one_farm(lambda leadership: None)


# ---- what is refused before any I/O


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stores": {}}, "the store of each farm"),
        ({"stores": {"iad": "sqlite:x"}}, "not a store"),
        ({"stores": {"i/d": MemoryStore()}}, "contains '/'"),
        ({"farm": "ams"}, r"farm_id names the farm 'ams'; there are \['iad', 'lhr'\]"),
        ({"prefer": ["ams"]}, "prefer names the farm 'ams'"),
        ({"prefer": ["iad", "iad"]}, "twice"),
        ({"prefer": "iad"}, "pass a list"),
        ({"all_farms": "lhr"}, "must be a bool"),
        ({"resources": ["r"]}, "keys of records"),
        ({"resources": [Key("r", str(n)) for n in range(101)]}, "at most 100"),
    ],
)
def test_farms_that_are_not_there_are_refused_before_any_io(candidate, given, says):
    with pytest.raises(InvalidRequest, match=says):
        candidate(given.pop("farm", "iad"), **given)


@pytest.mark.parametrize("given", [{"every": None}, {"every": -1}, {"every": 1e30}, {"timeout": "1"}, {"job": 7}])
def test_a_job_that_cannot_be_run_is_refused_before_any_io(candidate, given):
    one = candidate("iad")
    with pytest.raises(InvalidRequest, match=r"^(every|timeout|job) is "):
        one.run_in_one_farm(**{"job": print, **given})
    assert one.start(), "it does not take part"


def test_one_store_for_two_farms_is_refused(candidate):
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match="have one store"):
        candidate("iad", stores={"iad": store, "lhr": store})


# ---- a real ZooKeeper


@pytest.fixture
def stand(zookeeper, farms):
    """A candidate of a farm, behind a connection to ZooKeeper that can be cut."""
    ends, office = [], f"office-{uuid.uuid4().hex[:8]}"

    def make(farm, **rest):
        pipe = Pipe(zookeeper.port)
        client = connected(KazooClient(pipe.hosts, timeout=LONG))
        one = GlobalElection(farms, office, zookeeper=client, farm_id=farm, resources=[RESOURCE], **rest)
        one.pipe = pipe
        ends.extend([pipe.close, client.close, client.stop, one.stop])
        return one

    yield make
    for end in reversed(ends):
        end()


def cut_off(one, zookeeper):
    """Cut a candidate off from ZooKeeper, which gives its session up."""
    session = one._client.client_id
    one.pipe.refuses = True
    one.pipe.cut()
    until(lambda: not one._client.connected)
    expire(zookeeper, session)


def test_a_farm_that_is_cut_off_from_zookeeper_loses_its_term_and_is_refused_at_home(stand, farms, zookeeper):
    first, second = stand("iad"), stand("lhr")
    first.start()
    old = until(lambda: first.leadership)
    old.operate(RESOURCE, Add("n", 1))
    second.start()
    until(lambda: len(second.contenders()) == 2)
    cut_off(first, zookeeper)
    assert old.lost.wait(20)
    new = until(lambda: second.leadership)
    assert new.epoch > old.epoch
    until(lambda: not second.unsealed)
    with pytest.raises(FencedOut, match="has ended"):
        old.operate(RESOURCE, Add("n", 1))
    old.check = lambda: None  # paused between its check and its write
    with pytest.raises(FencedOut, match="another holder"):
        old.operate(RESOURCE, Add("n", 1))
    assert farms["iad"].get(RESOURCE).bins["n"] == 1


def test_a_farm_that_is_cut_off_altogether_is_sealed_when_it_is_back_and_takes_over_in_order(stand, farms, zookeeper):
    first, second = stand("iad", prefer=["iad"]), stand("lhr", prefer=["iad"])
    first.start()
    old = until(lambda: first.leadership)
    until(lambda: not first.unsealed)
    farms["iad"].cut_off()
    cut_off(first, zookeeper)
    epochs = []
    runner = threading.Thread(
        target=second.run_in_one_farm, args=[lambda one: epochs.append(one.epoch)], kwargs={"every": 0.01}
    )
    runner.start()
    until(lambda: epochs)
    assert second.unsealed == {"iad"}
    farms["iad"].heal()
    until(lambda: farms["iad"].get(RESOURCE).bins["fence"] == epochs[-1] > old.epoch)
    until(lambda: not second.unsealed)
    first.pipe.refuses = False
    again = until(lambda: first.leadership)
    assert again.epoch > max(epochs)
    assert second.leadership is None
    second.stop()
    runner.join(20)


def test_zookeeper_keeps_the_epoch_and_a_line_that_was_deleted_costs_no_order(stand, farms):
    one = stand("iad")
    first = one.run(lambda leadership: leadership.epoch, timeout=20)
    assert one._line.kept()[0] == first
    one._client.delete(one._path, recursive=True)
    assert one.run(lambda leadership: leadership.epoch, timeout=20) > first


def test_zookeeper_that_does_not_answer_is_unavailable(stand):
    one = stand("lhr", prefer=["iad"])
    one.pipe.refuses = True
    one.pipe.cut()
    with pytest.raises(Unavailable):
        one.gives_way_to()
