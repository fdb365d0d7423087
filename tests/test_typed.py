"""A type is described by one thread at a time: a second one that read half of a description would end the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

TWO_FIRST_USES = r"""
import sys, threading
import msgspec
from latchwork.typed import converted, decoder

half, go_on = threading.Event(), threading.Event()

class Stops(type):
    def __getattribute__(cls, name):  # msgspec asks this in the middle of its description of `Record`
        if name == "__origin__" and threading.current_thread().name == "first":
            half.set()
            go_on.wait(10)
        return super().__getattribute__(name)

class Slow(metaclass=Stops): ...

class Record(msgspec.Struct):
    a: int = 0
    b: Slow | None = None
    c: str = ""

def use():
    if {by_value}:
        assert converted({{"a": 1, "b": None, "c": "x"}}, Record).c == "x"
    else:
        assert decoder(Record)(b'{{"a": 1, "b": null, "c": "x"}}').c == "x"
    sys.stdout.write("used\n")

first = threading.Thread(target=use, name="first")
first.start()
assert half.wait(10)
second = threading.Thread(target=use)
second.start()
second.join({patience})
go_on.set()
first.join()
second.join()
"""


@pytest.mark.parametrize("by_value", [True, False])
def test_two_threads_that_use_a_type_first_at_the_same_moment_both_read_it(by_value):
    program = TWO_FIRST_USES.format(by_value=by_value, patience=0.5)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["used", "used"], "")


def test_a_fork_waits_until_no_type_is_half_described():
    program = (
        TWO_FIRST_USES.format(by_value=True, patience=0.0)
        .replace(
            "second = threading.Thread(target=use)",
            """
def fork():
    import os
    threading.Timer(0.2, go_on.set).start()
    child = os.fork()
    if not child:
        use()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

second = threading.Thread(target=fork)""",
        )
        .replace("go_on.set()\nfirst.join()", "first.join()")
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["used", "used"]), done.stderr
