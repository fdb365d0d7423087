"""Rows of one record in one batch are applied in any order: a store around any other, where the last comes first."""

from __future__ import annotations

from latchwork.store.port import DelegatingStore


class LastFirst(DelegatingStore):
    """As an Aerospike whose namespace is on a device may do it."""

    def _operate_many(self, updates):
        rows = super()._operate_many(list(reversed(updates)))
        return list(reversed(rows))
