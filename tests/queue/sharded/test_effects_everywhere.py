"""Three handlers as users write them, with every fault at every call: each effect is there exactly once (P23)."""

from __future__ import annotations

from collections import Counter

import pytest

from latchwork.coord.effects import marks
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Add, Bin, Exists, Key, Put, Update
from latchwork.testing import bring_back, inject_everywhere
from tests.support import struck

ORDERS = ("A-1", "A-2")
PAYER, PAYEE = Key("accounts", "payer"), Key("accounts", "payee")
NEXT = "mails"


def prepare(store):
    registry = QueueRegistry(store, "shop")
    registry.create(QueueConfig(NEXT, shards=1))
    for account in (PAYER, PAYEE):
        store.operate(account, Put("balance", 100), exists=Exists.ANY)
    registry.create(QueueConfig("orders", shards=1)).publish_many(ORDERS, message_ids=ORDERS)


def transfer(delivery, store, done):
    delivery.operate(PAYER, Add("balance", -10), when=Bin("balance") >= 10)
    delivery.operate(PAYEE, Add("balance", 10))


def mail(delivery, store, done):
    """With a provider that honours tokens: a mail with a token that it knows is not sent again."""

    def send(token):
        if token not in done:
            done.append(token)
        return f"sent {delivery.payload}"

    step = delivery.once("mail")
    assert step.run(send, step.token) == f"sent {delivery.payload}"


def forward(delivery, store, done):
    following = QueueRegistry(store, "shop").get(NEXT)
    step = delivery.once("forward")
    step.run(following.publish, delivery.payload, dedup=step.token)


def working(handler):
    """One process that handles what there is, as a consumer does it."""

    def work(store, done):
        for delivery in QueueRegistry(store, "shop").get("orders").receive(10):
            handler(delivery, store, done)
            delivery.ack()

    return work


def recovering(handler):
    def recover(store, done):
        bring_back(QueueRegistry(store, "shop").get("orders"))
        working(handler)(store, done)

    return recover


def each_is_paid_once(store):
    balances = [store.get(account).bins["balance"] for account in (PAYER, PAYEE)]
    assert balances == [80, 120]


def each_is_forwarded_once(store):
    found = Counter(delivery.payload for delivery in QueueRegistry(store, "shop").get(NEXT).receive(100))
    assert found == Counter(ORDERS), found


def tokens_of(handler):
    """The tokens that the provider gets where nothing fails: the same ones in every run."""
    done = []

    def work(store, _):
        working(handler)(store, done)

    inject_everywhere(work, prepare=prepare, faults=())
    return done


@pytest.mark.parametrize(
    ("handler", "check"),
    [
        (transfer, each_is_paid_once),
        pytest.param(mail, None, marks=pytest.mark.long),
        pytest.param(forward, each_is_forwarded_once, marks=pytest.mark.long),
    ],
)
def test_each_effect_is_there_once_for_every_fault_at_every_call(handler, check):
    expected = set(tokens_of(mail)) if handler is mail else ()
    report = inject_everywhere(
        working(handler),
        prepare=prepare,
        recover=recovering(handler),
        expected=expected,
        check=check,
        faults=struck.faults("effects"),
    )
    assert not report.troubles, report
    assert report.calls >= 8
    print(report)


@pytest.mark.long
def test_it_holds_as_well_while_marks_leave_the_record(monkeypatch):
    monkeypatch.setattr(marks, "ROOM", 3)

    def crowded(store):
        prepare(store)
        for n in range(5):
            effect = marks.Effect(marks.token_of(f"another {n}"), "shop_effect_set", 3600)
            marks.apply(store, Update(PAYER, (Add("balance", -1),)), effect)

    def check(store):
        balances = [store.get(account).bins["balance"] for account in (PAYER, PAYEE)]
        assert balances == [75, 120]

    report = inject_everywhere(
        working(transfer), prepare=crowded, recover=recovering(transfer), expected=(), check=check
    )
    assert not report.troubles, report
    assert report.calls >= 18


def test_the_same_handler_without_it_pays_twice():
    """So the faults of these tests do find what they look for."""

    def careless(delivery, store, done):
        store.operate(PAYER, Add("balance", -10))
        store.operate(PAYEE, Add("balance", 10))

    report = inject_everywhere(
        working(careless),
        prepare=prepare,
        recover=recovering(careless),
        check=each_is_paid_once,
        faults=struck.faults("effects"),
    )
    assert report.failed
