"""What a session is asked before the source is made known to it, and what is said of one that lacks something.

The sessions here are stand-ins that run a job in this process; `test_first_steps.py` has real ones.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException

from latchwork.errors import Misconfigured
from latchwork.spark import register
from latchwork.spark.datasource import LatchworkSource

PROBED = "probed"
"""Stands in `asked` for a job that was run. A source that was registered stands there itself."""


class Session:
    """A session whose executors run this Python.

    asked: what it was asked to do, in order.
    refusal: what its registry raises.
    """

    def __init__(self, master="local[2]", python=sys.executable, *, fails=None, refusal=None) -> None:
        self.asked, self.refusal, self._fails = [], refusal, fails
        self.sparkContext = SimpleNamespace(master=master, pythonExec=python)
        self.dataSource = SimpleNamespace(register=self._register)

    def _register(self, source):
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(source)

    def range(self, *_):
        return self

    def mapInArrow(self, run, schema):  # noqa: N802 - Spark's name
        assert schema == "lacks string"
        self._run = run
        return self

    def collect(self):
        self.asked.append(PROBED)
        if self._fails is not None:
            raise self._fails
        (row,) = self._run(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
        return [SimpleNamespace(lacks=lacks) for lacks in row.to_pydict()["lacks"]]


class OverConnect(Session):
    """A session on Spark Connect, which has no context."""

    def __init__(self):
        super().__init__()
        del self.sparkContext


OverConnect.__module__ = "pyspark.sql.connect.session"


class Lacking(OverConnect):
    """A session whose executors have no Latchwork."""

    def collect(self):
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(sys.modules, "latchwork.spark.datasource", None)  # as where it is not there
            return super().collect()


Lacking.__module__ = OverConnect.__module__


def refused(condition):
    class Refused(AnalysisException):
        def getCondition(self):  # noqa: N802 - PySpark's name
            return condition

    return Refused("no")


def test_no_job_is_run_where_tasks_run_in_this_python():
    for master in ("local", "local[4]", "local[2,4]"):
        session = Session(master)
        register(session)
        assert session.asked == [LatchworkSource]


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1.dev0", "4.10.0", "5.0.0"])
def test_the_oldest_pyspark_that_will_do_and_all_newer_ones_are_taken(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    session = Session()
    register(session)
    assert session.asked == [LatchworkSource]


@pytest.mark.parametrize(
    "made",
    [lambda: Session(python="/no/python"), lambda: Session("spark://host:7077"), lambda: Session(None), OverConnect],
    ids=["another python", "a cluster", "no master", "connect"],
)  # fmt: skip
def test_a_job_looks_where_tasks_may_run_elsewhere(made):
    session = made()
    register(session)
    assert session.asked == [PROBED, LatchworkSource]


def test_an_executor_without_latchwork_is_refused_with_what_it_lacks_and_where():
    session = Lacking()
    with pytest.raises(
        Misconfigured, match=r"cannot read or write a queue: .*latchwork\.spark\.datasource.*, in "
    ) as no:
        register(session)
    assert f"in {sys.executable}; install Latchwork" in str(no.value)
    assert session.asked == [PROBED]


OF_PYTHON = """An exception was thrown from the Python worker. Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'pyarrow'
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 is not 3.11
java.io.IOException: Cannot run program "a"
"""
OF_JAVA = 'Job aborted: java.io.IOException: Cannot run program "/no/python": error=2\n\tat java.base/x.run(y:1)\n'


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (OF_PYTHON, "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 is not 3.11;"),
        (OF_JAVA, 'Cannot run program "/no/python": error=2;'),
        ("of no kind that is known\nat all", "RuntimeError;"),
        (f"OSError: {'x' * 1000}", f"OSError: {'x' * 291};"),
    ],
    ids=["python", "java", "unknown", "long"],
)
def test_a_job_that_fails_is_said_in_one_line_by_its_last_cause(text, cause):
    session = Session("spark://host:7077", fails=RuntimeError(text))
    with pytest.raises(Misconfigured) as failure:
        register(session)
    assert f"ran no task: {cause} it must be of the driver's version" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert session.asked == [PROBED]


def test_a_source_that_spark_has_found_by_itself_is_no_error_and_another_refusal_is():
    register(Session(refusal=refused("DATA_SOURCE_ALREADY_EXISTS")))
    with pytest.raises(AnalysisException):
        register(Session(refusal=refused("ANOTHER")))
