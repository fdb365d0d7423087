"""Spark sessions for the tests: one at a time in this process, each shared by as many tests as possible.

Starting one takes several seconds, so the tests of one master stand next to one another and `Sessions.on` keeps its
session until another master is asked for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from latchwork.store.connect import connect

from . import tasks

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""A test is over long before the better compiler has paid for itself; and Spark's classes are verified elsewhere, which
takes a sixth of a session's start."""
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
PYTHONPATH = os.pathsep.join(filter(None, (str(Path(__file__).parent / "preload"), os.environ.get("PYTHONPATH"))))
"""With it Spark's Python processes start with less work: see `preload/sitecustomize.py`."""
BOTH = ["sqlite", "aerospike"]


class Sessions:
    """At most one Spark session: that of the master asked for last."""

    def __init__(self, warehouse):
        self._master, self._session, self._warehouse = None, None, warehouse

    def on(self, master, **settings):
        if self._master != (master, settings):
            self.stop()
            self._session, self._master = self._start(master, settings), (master, settings)
        return self._session

    def stop(self):
        if self._session is not None:
            self._session.stop()
        self._session = self._master = None

    def _start(self, master, settings):
        from pyspark import cloudpickle
        from pyspark.sql import SparkSession

        cloudpickle.register_pickle_by_value(tasks)  # the workers cannot import the tests
        builder = SparkSession.builder.master(master).appName("latchwork-tests")
        more = {"spark.sql.warehouse.dir": str(self._warehouse)}
        for name, value in (SETTINGS | more | settings).items():
            builder = builder.config(name, value)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", PYTHONPATH)
            session = builder.getOrCreate()  # Java passes its environment on, to executors too
        session.sparkContext.setLogLevel("OFF")
        return session


@pytest.fixture(scope="session")
def sessions(tmp_path_factory):
    made = Sessions(tmp_path_factory.mktemp("warehouse"))
    yield made
    made.stop()


@pytest.fixture
def spark(sessions):
    """Two threads of one process; a task is tried up to four times."""
    return sessions.on("local[2,4]")


@pytest.fixture
def executors(sessions):
    """Two executors of one core, each a Java process of its own."""
    return sessions.on("local-cluster[2,1,512]")


@pytest.fixture(params=BOTH)
def store(request, tmp_path):
    return _store(request, tmp_path)


@pytest.fixture
def url(request, store):
    return _url(request, store)


def _url(request, store):
    """What an executor is given to reach the same store."""
    return getattr(store, "url", None) or request.getfixturevalue("aerospike_server").url


def _store(request, tmp_path):
    if request.param == "aerospike":
        return request.getfixturevalue("aerospike_store")
    return connect(f"sqlite:{tmp_path / 'store.db'}")


@pytest.fixture
def trail(tmp_path):
    """A folder in which the attempts of tasks leave marks."""
    folder = tmp_path / "trail"
    folder.mkdir()
    return tasks.Trail(str(folder))
