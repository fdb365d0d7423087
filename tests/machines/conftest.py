"""`agree` runs the machines of a primitive over a pair of stores, and counts them."""

from __future__ import annotations

import pytest

from .twins import MACHINES, ON_A_SERVER, Server, SQLite, run

LAYER = "state machines"


@pytest.fixture(params=["sqlite", "aerospike"])
def agree(request, proved, tmp_path):
    """`agree(machine, "latches")`: every machine finds the memory store and this one alike."""
    if request.param == "sqlite":
        second, machines, pair = SQLite(tmp_path / "store.db"), MACHINES, "SQLite and memory"
    else:
        second, machines = Server(request.getfixturevalue("aerospike_store")), ON_A_SERVER
        pair = "Aerospike and memory"

    def agreeing(machine, primitive: str) -> None:
        ran = run(lambda: machine(second), machines)
        proved(LAYER, f"{primitive}, {pair}", machines=ran)

    return agreeing
