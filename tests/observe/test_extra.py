"""Where the extra `metrics` is not installed, the error says how to get it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("adapter", "needs"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")]
)
def test_an_adapter_whose_package_is_missing_names_the_extra(monkeypatch, adapter, needs):
    name = f"latchwork.observe.{adapter}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for module in [needs, *(each for each in sys.modules if each.startswith(f"{needs}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'latchwork\[metrics\]'") as failure:
        import_module(name)
    assert failure.value.name.partition(".")[0] == needs
