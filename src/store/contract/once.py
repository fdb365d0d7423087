"""The contract of exactly-once: replies that are lost, requests that land late (docs/protocols P1)."""

from __future__ import annotations

from ...errors import NotFound, OutcomeUnknown, Refused
from ..model.expr import Bin
from ..model.ops import Add, Put, Read
from ..port import Exists, Once, PolicyView, RecordStore, Update, Values
from .records import Contract, bins, make, new_key, raises

ONCE = Once(8, result=Bin("n"))


class Unreliable(PolicyView):
    """A store whose next `_operate` attempts end in doubt as asked: `lost` is applied, `late` waits for `land`."""

    def __init__(self, inner: RecordStore, *faults: str) -> None:
        super().__init__(inner, inner.policy)
        self.faults, self.late = list(faults), list[Update]()

    def _operate(self, update: Update) -> Values:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "late":
            self.late.append(update)
        if fault == "late" or (fault == "lost" and self.inner._operate(update) is not None):
            raise OutcomeUnknown(f"{fault}, by order of the check")
        return self.inner._operate(update)

    def land(self) -> None:
        """Let the late requests arrive, if the store still takes them."""
        for update in self.late:
            try:
                self.inner._operate(update)
            except (Refused, NotFound):
                continue


class OnceContract(Contract):
    """An update with a token happens once, however often its request is sent and whenever it arrives."""

    def test_an_update_whose_reply_was_lost_happens_once(self, store: RecordStore) -> None:
        key = make(store, Put("n", 10))
        for faults in ((), ("lost",), ("lost", "lost")):
            before = (bins(store, key) or {})["n"]
            assert Unreliable(store, *faults).operate(key, Add("n", 1), once=ONCE) == (before + 1,)
            assert (bins(store, key) or {})["n"] == before + 1

    def test_an_update_that_lands_late_happens_once(self, store: RecordStore) -> None:
        key = make(store, Put("n", 10))
        slow = Unreliable(store, "late")
        assert slow.operate(key, Add("n", 1), once=ONCE) == (11,)
        slow.land()
        assert (bins(store, key) or {})["n"] == 11

    def test_an_update_that_lands_after_its_refusal_does_nothing(self, store: RecordStore) -> None:
        key = make(store, Put("n", 10), Put("open", 0))
        slow = Unreliable(store, "late")
        raises(Refused, slow.operate, key, Add("n", 1), when=Bin("open").eq(1), once=ONCE)
        store.operate(key, Put("open", 1))
        slow.land()
        assert (bins(store, key) or {})["n"] == 10

    def test_a_late_update_that_the_window_has_forgotten_does_nothing(self, store: RecordStore) -> None:
        key = make(store, Put("n", 0))
        slow = Unreliable(store, "late", "late", "late", "late", "late", "late")
        raises(OutcomeUnknown, slow.operate, key, Add("n", 100), once=ONCE)
        for _ in range(2 * ONCE.capacity):
            store.operate(key, Add("n", 1), once=ONCE)
        slow.land()
        found = bins(store, key) or {}
        assert (found["n"], len(found["ops"])) == (2 * ONCE.capacity, ONCE.capacity)

    def test_a_create_whose_reply_was_lost_happens_once(self, store: RecordStore) -> None:
        for kind in (Exists.ANY, Exists.CREATE):
            key = new_key()
            slow = Unreliable(store, "lost")
            assert slow.operate(key, Add("n", 1), exists=kind, once=ONCE) == (1,)
            assert store.operate(key, Read("n")) == (1,)

    def test_the_answer_says_what_happened_where_nothing_did(self, store: RecordStore) -> None:
        key = make(store, Put("n", 1))
        raises(Refused, store.operate, key, Add("n", 1), when=Bin("n").eq(2), once=ONCE)
        raises(NotFound, store.operate, new_key(), Add("n", 1), once=ONCE)
        assert bins(store, key) == {"n": 1}
