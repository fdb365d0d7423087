"""Writes to an Aerospike server by its protocol, with any bytes as the value of a bin, as other clients can."""

from __future__ import annotations

import socket
import struct

import aerospike

INTEGER, TEXT, MAP, LIST = 1, 3, 19, 20
"""Kinds of values, as the server numbers them."""
_NEVER_EXPIRE = 0xFFFFFFFF


def put(server, key, bins, *, named=True):
    """Write the record; the server's result code. bins: for each its kind and its bytes. named: its key is stored."""
    namespace, digest = server.namespace, bytes(aerospike.calc_digest(server.namespace, key.set, key.name))
    fields = [_field(0, namespace.encode()), _field(1, key.set.encode()), _field(4, digest)]
    if named:
        fields.append(_field(2, bytes([TEXT]) + key.name.encode()))
    ops = [_write(name.encode(), kind, value) for name, (kind, value) in bins.items()]
    counts = (len(fields), len(ops))
    body = struct.pack(">BBBBBBIIIHH", 22, 0, 1, 0, 0, 0, 0, _NEVER_EXPIRE, 5000, *counts) + b"".join(fields + ops)
    with socket.create_connection((server.host, server.port), 5) as asked:
        asked.sendall(struct.pack(">Q", 2 << 56 | 3 << 48 | len(body)) + body)
        size = struct.unpack(">Q", asked.recv(8, socket.MSG_WAITALL))[0] & (1 << 48) - 1
        return asked.recv(size, socket.MSG_WAITALL)[5]


def _field(kind, data):
    return struct.pack(">IB", len(data) + 1, kind) + data


def _write(name, kind, value):
    return struct.pack(">IBBBB", 4 + len(name) + len(value), 2, kind, 0, len(name)) + name + value
