"""The claim of the sharded queue as the client's own call: what no Python around it can be faster than.

The same guard, operations and durability as `Shards.claim` (docs/protocols P1, P5), every expression compiled
once and its token put in for each call.
"""

from __future__ import annotations

import os
import time

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import expression_operations, map_operations

LOAD, FIRE, FROM, CLAIMS = "LOAD_POINTER", "FIRE_POINTER", "claimed-from", "claims"
KEEP = 64
TOKEN = b"TOKEN"
ORDERED = {"map_order": aerospike.MAP_KEY_ORDERED}


class RawClaim:
    """Claims the pointers of one shard, one after the other, each exactly once."""

    def __init__(self, client, key, policy: dict[str, object]) -> None:
        self.client, self.key, self.policy = client, key, policy
        self.guard, self.put = Template(_guard()), Template(_put())
        self.first = expression_operations.expression_write(FROM, exp.IntBin(FIRE).compile())
        one_more = exp.Min(exp.Add(exp.IntBin(FIRE), 1), exp.IntBin(LOAD)).compile()
        self.advance = expression_operations.expression_write(FIRE, one_more)
        self.trim = map_operations.map_remove_by_index_range(CLAIMS, -KEEP, KEEP, aerospike.MAP_RETURN_NONE, True)

    def __call__(self) -> int:
        """The next pointer."""
        token = int(time.time() * 1_000_000).to_bytes(7, "big") + os.urandom(10)
        steps = [
            self.first,
            self.advance,
            expression_operations.expression_write(CLAIMS, self.put.filled(token)),
            self.trim,
            map_operations.map_get_by_key(CLAIMS, token, aerospike.MAP_RETURN_VALUE),
        ]
        policy = {**self.policy, "expressions": self.guard.filled(token)}
        _, last, _ = self.client.operate_ordered(self.key, steps, None, policy)[2][-1][1]
        return last


class Template:
    """A compiled expression with places for the token."""

    def __init__(self, expression) -> None:
        self.entries = expression.compile()
        self.places = [at for at, entry in enumerate(self.entries) if entry[2] and entry[2].get("val") == TOKEN]

    def filled(self, token: bytes) -> list[tuple]:
        entries = self.entries.copy()
        for place in self.places:
            entries[place] = (200, None, {"val": token}, 0)
        return entries


def _guard():
    claims = exp.MapBin(CLAIMS)
    there = exp.MapGetByKey(None, aerospike.MAP_RETURN_EXISTS, exp.ResultType.BOOLEAN, TOKEN, claims)
    oldest = exp.MapGetByIndex(None, aerospike.MAP_RETURN_KEY, exp.ResultType.BLOB, 0, claims)
    unused = exp.Or(exp.Not(exp.BinExists(CLAIMS)), exp.Not(there))
    fresh = exp.Or(exp.LT(oldest, TOKEN), exp.LT(exp.MapSize(None, claims), KEEP), exp.Not(exp.BinExists(CLAIMS)))
    unfired = exp.And(exp.LT(exp.IntBin(FIRE), exp.IntBin(LOAD)), exp.Not(exp.BinExists("stream")))
    return exp.And(unused, exp.And(fresh, unfired))


def _put():
    result = exp.Val([])
    for bin in (FROM, FIRE, LOAD):
        result = exp.ListAppend(None, None, exp.IntBin(bin), result)
    empty = exp.Val(aerospike.KeyOrderedDict({}))
    claims = exp.Cond(exp.BinExists(CLAIMS), exp.MapBin(CLAIMS), empty)
    return exp.MapPut(None, ORDERED, TOKEN, result, claims)
