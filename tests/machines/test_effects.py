"""Effects and steps over two stores: asked for again and again, with lost replies, and each of them once."""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from latchwork.coord.effects import marks
from latchwork.coord.effects.step import once
from latchwork.errors import OutcomeUnknown, Refused
from latchwork.store import Add, Bin, Exists, Key, Update

from .processes import STRUCK, Client, calm, strike
from .twins import Twins, came_to, failed

ACCOUNTS = [Key("effects", name) for name in "ab"]
KEEP = 3_600
ROOM = 4
accounts = st.sampled_from(ACCOUNTS)
names = st.integers(0, 8)
AMOUNT = 10
LIMIT = 40
BELOW = Bin("n") < LIMIT


class Effects(Twins):
    """Effects on two records that have room for few marks, two steps, and a client whose calls fail now and then."""

    def start(self):
        self.clients = self.both(Client, self.stores)
        self.results: dict[tuple[Key, int], object] = {}
        self.counts = dict.fromkeys(ACCOUNTS, 0)
        self.done: dict[int, object] = {}

    @rule(place=st.integers(1, 6), fault=st.sampled_from(STRUCK))
    def go_wrong(self, place, fault):
        strike(self.clients, place, fault)

    @rule(account=accounts, name=names)
    def add(self, account, name):
        """It is applied once; every later time it has the first result."""
        self.asked(account, name, 1, Update(account, (Add("n", 1),), exists=Exists.ANY), {})

    @precondition(lambda self: all(self.counts.values()))
    @rule(account=accounts, name=names, decides=st.booleans())
    def add_below_the_limit(self, account, name, decides):
        """A refusal is forgotten, or decided."""
        self.asked(
            account,
            name + 100,
            AMOUNT,
            Update(account, (Add("n", AMOUNT),), BELOW),
            {"otherwise": "no"} if decides else {},
        )

    def asked(self, account, name, amount, update, options):
        refused = update.when is not None and self.counts[account] >= LIMIT
        effect = marks.Effect(marks.token_of(str(name)), "effects", KEEP, result=Bin("n"), **options)
        answers = self.both(lambda store: marks.apply(store, update, effect).result, self.clients)
        calm(self.clients)
        if came_to(answers) is OutcomeUnknown:  # it may be asked for again
            answers = self.both(lambda store: marks.apply(store, update, effect).result, self.clients)
        known = self.results.get((account, name))
        if known is not None:
            assert came_to(answers) == known
        elif refused and not options:
            assert came_to(answers) is Refused
        else:
            self.counts[account] += 0 if refused else amount
            self.results[account, name] = came_to(answers)
            assert came_to(answers) == ("no" if refused else self.counts[account])

    @rule(key=st.integers(0, 1), raises=st.booleans(), result=st.integers(0, 9))
    def work(self, key, raises, result):
        """A step is done once, unless its work raises."""

        def attempt(store):
            return once(store, key=f"step {key}", keep=KEEP, timeout=30).run(
                self.raising if raises else int, str(result)
            )

        answers = self.both(attempt, self.clients)
        calm(self.clients)
        if key in self.done:
            assert came_to(answers) == self.done[key]
        elif raises:
            assert failed(answers)
        else:
            self.done[key] = result
            assert came_to(answers) == result

    @staticmethod
    def raising(_):
        raise Refused("the provider says no")

    @invariant()
    def every_effect_counts_once(self):
        for account, count in self.counts.items():
            records = self.both(lambda store, account=account: store.get(account, "n"), self.stores)
            assert (records[0].bins.get("n", 0) if records[0] else 0) == count

    @invariant()
    def the_records_are_the_same(self):
        if self.movable:  # else which marks leave first is decided by two clocks
            super().the_records_are_the_same()


def test_effects_happen_once_and_alike_over_both_stores(agree):
    with mock.patch.object(marks, "ROOM", ROOM):
        agree(Effects, "effects")
