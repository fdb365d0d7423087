"""Names that a package offers, each loaded at its first use: importing a package costs nothing but its own file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offer(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` (PEP 562) of a package that offers names from its modules.

    package: the package's `__name__`
    modules: for each module, relative to the package, the names that it defines: {".sharded.delivery": "Delivery"}

    A type checker does not follow this: the package also imports the names under `TYPE_CHECKING`.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
