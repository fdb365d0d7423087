"""For each rule of docs/protocols the interleaving that breaks a protocol without it.

Every script is played twice: with the rule it holds, and with the rule taken out it does not.
"""

from __future__ import annotations

import pytest

from tests.support.broken import breaks

from .scripts import RULES

LAYER = "rules, by script"
each_rule = pytest.mark.parametrize(("name", "script", "without"), RULES, ids=[name for name, _, _ in RULES])


@each_rule
def test_the_rule_closes_the_hole(name, script, without, proved):
    assert script() is True
    proved(LAYER, name.split()[0].split(".")[0], held=1)


@each_rule
def test_without_the_rule_the_hole_is_open(name, script, without, proved):
    with without():
        assert breaks(lambda: _insist(script))
    proved(LAYER, name.split()[0].split(".")[0], {"broken without": 1})


def _insist(script):
    assert script() is True
