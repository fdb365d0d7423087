"""Values that cannot be decoded, as text on Aerospike that is not UTF-8: a store around any other."""

from __future__ import annotations

from latchwork.errors import Unreadable
from latchwork.store import Compute, Read
from latchwork.store.model.ops import MapGet, ReadAll
from latchwork.store.port import DelegatingStore


class Undecodable(DelegatingStore):
    """What reads the bin of a record that is named in `bad` is `Unreadable`, and an update has been made all the same.

    A query and a scan pass the record over, as on Aerospike.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.bad = {}

    def _unreadable(self, key, bins=()):
        bin = self.bad.get(key)
        if bin is None or (bins and bin not in bins):
            return None
        return Unreadable(f"{key}: the bin {bin!r} has text that is not UTF-8; correct the record, or delete it")

    def _of_row(self, update):
        """Its error, where one of its operations reads that bin: an expression names what it reads."""
        bad = repr(self.bad.get(update.key))
        reads = any(
            isinstance(op, ReadAll) or (isinstance(op, Read | Compute | MapGet) and bad in repr(op))
            for op in update.ops
        )
        return self._unreadable(update.key) if reads else None

    def _get(self, key, bins):
        if failure := self._unreadable(key, bins):
            raise failure
        return super()._get(key, bins)

    def _get_many(self, keys, bins):
        for key in keys:
            if failure := self._unreadable(key, bins):
                raise failure
        return super()._get_many(keys, bins)

    def _operate(self, update):
        values = super()._operate(update)
        if failure := self._of_row(update):
            raise failure
        return values

    def _operate_many(self, updates):
        rows = super()._operate_many(updates)
        return [self._of_row(update) or row for update, row in zip(updates, rows, strict=True)]

    def _query(self, set, bin, equals):
        return [one for one in super()._query(set, bin, equals) if one.key not in self.bad]

    def _scan(self, set):
        return [one for one in super()._scan(set) if one.key not in self.bad]
