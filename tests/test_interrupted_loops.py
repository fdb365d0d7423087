"""An interrupt, as Ctrl-C, lets go of the lock that the interrupted block holds, on each Python.

From 3.12 on, Python compiles the end of a loop into a jump back that no exception handler covers, if a condition stands
before it: an interrupt at this jump skips the `finally`, and the end of a `with` (python/cpython#130279). So a block
under a lock leaves such loops to a function that it calls, or to `filter`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import latchwork

SOURCE = Path(latchwork.__file__).parent
LOCKS = re.compile(r"(lock|guard)\b")
UNDER_LOCK = re.compile(r"^ *with (.*(lock|guard)\b|.*[(\[{]$)", re.MULTILINE)
"""What each file has that has a block under a lock; the others need not be parsed, which takes seconds for all."""
OTHER_FRAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)


def in_this_frame(node):
    """The node and all below it, without what runs in a frame of its own."""
    yield node
    if not isinstance(node, OTHER_FRAMES):
        for child in ast.iter_child_nodes(node):
            yield from in_this_frame(child)


def ends_with_a_condition(node):
    """Whether it is a loop with a jump back behind a condition."""
    if isinstance(node, ast.While):
        return not isinstance(node.test, ast.Constant) or isinstance(node.body[-1], ast.If)
    if isinstance(node, ast.For):
        return isinstance(node.body[-1], ast.If) or any(isinstance(one, ast.Continue) for one in in_this_frame(node))
    return isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)) and any(part.ifs for part in node.generators)


def loops_under_locks(text):
    """The lines of the loops that may keep a lock when they are interrupted."""
    for block in ast.walk(ast.parse(text)) if UNDER_LOCK.search(text) else ():
        if isinstance(block, ast.With) and any(LOCKS.search(ast.unparse(item.context_expr)) for item in block.items):
            for node in (below for statement in block.body for below in in_this_frame(statement)):
                if ends_with_a_condition(node):
                    yield node.lineno


def test_no_block_under_a_lock_has_a_loop_that_an_interrupt_leaves_without_letting_go():
    files = list(SOURCE.rglob("*.py"))
    found = {
        str(file.relative_to(SOURCE)): lines for file in files if (lines := [*loops_under_locks(file.read_text())])
    }
    assert sum("_lock:" in file.read_text() for file in files) > 10
    assert found == {}


@pytest.mark.parametrize(
    "loop",
    [
        "a = [one for one in b if one]",
        "for one in b:\n        if one: c()",
        "for one in b:\n        if one: continue\n        c()",
        "while b: c()",
    ],
)
def test_such_a_loop_is_found(loop):
    assert [*loops_under_locks(f"with self._lock:\n    {loop}")] == [2]


@pytest.mark.parametrize(
    "loop", ["a = [one for one in b]", "a = list(filter(c, b))", "for one in b: c()", "a = tuple(x for x in b if x)"]
)
def test_a_loop_without_a_condition_or_in_a_function_of_its_own_is_none(loop):
    assert [*loops_under_locks(f"with self._lock:\n    {loop}")] == []
