"""A store whose client knows no node (F15): the Aerospike backend as it is, over a client that does what the real one
does then, by docs/aerospike-client.md; `tests/store/aerospike/test_aerospike_outages.py` compares that page with real
servers.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from aerospike import exception as driver
from aerospike_helpers.batch.records import BatchRecords

from latchwork.errors import Unavailable
from latchwork.store import Key
from latchwork.store.aerospike.store import AerospikeStore

_UNKNOWN = driver.InvalidNodeError(-8, "Node not found for partition sim:0", "as_command.c", 712, False)
_EMPTY = driver.ServerError(1, "Command failed because cluster is empty.", "as_cluster.c", 185, False)
_NOBODY = driver.ClientError(-1, "Invalid info operation.", "info_random_node.c", 92, False)


def _raises(failure: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        # One exception for all runs: its traceback would grow with each raise, and keep every run's world alive.
        raise failure.with_traceback(None)

    return fail


class NoNode:
    """A client that has forgotten every node. Single calls raise; batches return as if they had been sent."""

    get = select = operate = operate_ordered = remove = staticmethod(_raises(_UNKNOWN))
    info_random_node = index_single_value_create = staticmethod(_raises(_NOBODY))

    def batch_write(self, batch: Any, _policy: Any) -> Any:
        """Leave each row as the client makes it, with an empty record; the batch's own result alone tells."""
        batch.result = 1
        for row in batch.batch_records:
            row.result, row.in_doubt, row.record = 0, False, (row.key, {"ttl": 0, "gen": 0}, {})
        return batch

    def batch_read(self, *_: Any) -> Any:
        """No rows at all."""
        batch = BatchRecords([])
        batch.result = 1
        return batch

    def query(self, *_: Any) -> Any:
        """It can be made, and not asked."""
        return SimpleNamespace(where=lambda _: None, results=_raises(_EMPTY))

    def info_all(self, _command: str) -> dict[str, Any]:
        """Nobody answers."""
        return {}


class _LostStore(AerospikeStore):
    def _ages(self) -> bool:
        return False  # the namespace was asked while there was a node


LOST = _LostStore(NoNode(), "sim")
"""The store as everybody sees it who is cut off from the cluster. Its first call looks at the clock once more than all
others, and all runs are to be the same: so that is here."""
with suppress(Unavailable):
    LOST._get(Key("sim", "first"), None)
