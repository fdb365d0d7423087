"""The record-store port, its vocabulary and its backends."""

from .local.memory import MemoryStore
from .model.expr import Bin, Param, exists, has, lacks, missing
from .model.ops import (
    Add,
    Compute,
    ListAppend,
    ListRange,
    ListSet,
    MapAdd,
    MapGet,
    MapPut,
    MapRemove,
    MapTrim,
    Put,
    Read,
    ReadAll,
    Touch,
)
from .port import KEEP, NEVER, Exists, Key, Once, Record, RecordStore, Removal, StoreInfo, Update
from .rows import Rows
from .sqlite.store import SQLiteStore

__all__ = [
    "KEEP", "NEVER", "Add", "Bin", "Compute", "Exists", "Key", "ListAppend", "ListRange", "ListSet", "MapAdd", "MapGet",
    "MapPut", "MapRemove", "MapTrim", "MemoryStore", "Once", "Param", "Put", "Read", "ReadAll", "Record", "RecordStore",
    "Removal", "Rows", "SQLiteStore", "StoreInfo", "Touch", "Update", "exists", "has", "lacks", "missing",
]  # fmt: skip
