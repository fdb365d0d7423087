"""A process of `test_payments_killed`, killed at any moment: run with a URL, a client, and the file of the provider.

It pays, charges a provider and passes each payment on, and does the upkeep while it leads.
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings

import latchwork
from latchwork.coord import LeaseElection
from latchwork.errors import LatchworkError
from latchwork.queue import Publish, QueueConfig, QueueRegistry, ShovelConfig
from latchwork.store import Add, Bin, Key

from .crowd_worker import Log, lead

warnings.simplefilter("ignore")
SWEEP = 2.0


def queues_of(url: str, client: str):
    """The payments, and the mails about them."""
    registry = QueueRegistry(latchwork.connect(url), client, farm_id="f")
    return [
        registry.create(
            QueueConfig(
                name, shards=3, sweep_duration=SWEEP, handler_timeout=SWEEP / 2, max_deliveries=100_000,
                shovel=ShovelConfig(1), unsafe_limits=True, message_expiry=7200, queue_expiry=7200,
            )
        )
        for name in ("payments", "mails")
    ]  # fmt: skip


def opened(url: str, client: str):
    """The same, once the store can be reached."""
    while True:
        try:
            return queues_of(url, client)
        except LatchworkError:
            time.sleep(0.1)


def account(client: str, number: int) -> Key:
    return Key(f"{client}_accounts", str(number))


class Provider:
    """Honours tokens, as its file shows: a charge is a line with its token, and equal lines are one charge."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def charge(self, payment: str, token: str) -> str:
        os.write(self._file, f"{payment} {token}\n".encode())
        return f"receipt {payment}"


def handle(client: str, delivery, mails, provider: Provider) -> None:
    """What a payment is: the balance of one account to another, a charge, and a mail."""
    payment, payer, payee, cents = delivery.payload
    delivery.operate(account(client, payer), Add("cents", -cents), result=Bin("cents"))
    charge = delivery.once("charge", lease=1.0)
    assert charge.run(provider.charge, payment, charge.token) == f"receipt {payment}"
    delivery.operate(account(client, payee), Add("cents", cents), publish=Publish(payment, queue=mails))


def main(url: str, client: str, path: str, log: str) -> None:
    payments, mails = opened(url, client)
    provider, chance = Provider(path), random.Random(os.getpid())
    election = LeaseElection(payments.store, f"{client}-upkeep", lease=1.0)
    election.start(lead(payments.registry, election, Log(log)))
    while True:
        try:
            for delivery in payments.receive(chance.choice((1, 5)), timeout=0.2):
                handle(client, delivery, mails, provider)
                delivery.ack()
        except LatchworkError:
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
