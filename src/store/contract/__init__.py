"""The contract of every backend, as checks that the author of a new backend can run.

With pytest, name a fixture `store` and inherit:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)

Without it, `run(make_store)` calls each check with a new store; put that into a file, under
`if __name__ == "__main__":`, since some checks start processes, which load the file. Names of records are never used
twice, so a shared server may be used. Set `shared = False` if a store lives in one process only, and override
`pass_time` if its clock is injected.
"""

from __future__ import annotations

from collections.abc import Callable

from ..port import RecordStore
from .batches import BatchContract, QueryContract, SharingContract
from .once import OnceContract
from .records import GuardContract, RecordContract
from .text import TextContract
from .ttl import LifetimeContract
from .updates import FormContract


class StoreContract(
    RecordContract, GuardContract, FormContract, LifetimeContract, BatchContract, QueryContract, OnceContract,
    SharingContract, TextContract,
):  # fmt: skip
    """All checks of the contract."""


def run(make_store: Callable[[], RecordStore], contract: type[StoreContract] = StoreContract) -> int:
    """Call every check with a new store; how many there were. An `AssertionError` says which promise is broken."""
    checks = [name for name in dir(contract) if name.startswith("test_")]
    for name in checks:
        store = make_store()
        try:
            getattr(contract(), name)(store)
        finally:
            store.close()
    return len(checks)
