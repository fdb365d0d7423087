"""What somebody meets who has just installed it: the first program, and what an installation lacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from latchwork.errors import Misconfigured
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import SparkLatch, once_per_batch, register
from latchwork.store.connect import connect

from .conftest import JAVA_OPTIONS, PYTHONPATH

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "spark.md"


def blocks_of_the_guide():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def installed(tmp_path):
    """A folder as a wheel leaves it: an editable installation is not on the path, where Spark looks for sources."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "latchwork").symlink_to(ROOT / "src")
    (site / "pyspark_latchwork").symlink_to(ROOT / "pyspark_latchwork")
    return site


@pytest.mark.long
def test_the_first_program_of_the_guide_runs_without_register_and_gives_back_what_it_wrote(installed, tmp_path):
    block = blocks_of_the_guide()[0]
    assert "register" not in block
    assert len([line for line in block.splitlines() if line.strip()]) == 12
    settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": JAVA_OPTIONS}
    conf = tmp_path / "spark-defaults.conf"
    conf.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(installed), PYTHONPATH)),
        "LATCHWORK_STORE": f"sqlite:{tmp_path / 'shop.db'}",
        "SPARK_CONF_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", block.replace("/tmp/", f"{tmp_path}/")],
        capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['milk', 'tea']", "['milk', 'tea']"]


@pytest.mark.long
def test_the_other_programs_of_the_guide_do_what_it_says(spark, tmp_path, monkeypatch):
    """They name a session, frames and folders that a reader has, and a table of Delta: here a folder of Parquet."""
    store = connect(f"sqlite:{tmp_path / 'shop.db'}")
    QueueRegistry(store, "shop").create(QueueConfig("orders", retry=False))
    in_production, guarded, counted, on_connect = blocks_of_the_guide()[1:]
    names = {
        "spark": spark,
        "store": store,
        "frame": spark.createDataFrame([((7, 2.5),)], "payload struct<id: long, total: double>"),
        **{name: str(tmp_path / name) for name in ("out", "checkpoint", "path", "output")},
    }
    exec(in_production.replace("aerospike://db:3000/jobs", f"sqlite:{tmp_path / 'shop.db'}"), names)
    assert [tuple(row) for row in spark.read.parquet(names["out"]).collect()] == [(7, 2.5)]
    names |= {"stream": spark.readStream.schema("id long, total double").parquet(names["out"])}
    names |= {"checkpoint": str(tmp_path / "guarded")}
    exec(guarded.replace('"delta"', '"parquet"'), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert [tuple(row) for row in spark.read.parquet(names["path"]).collect()] == [(7, 2.5)]
    exec(counted, names)
    assert SparkLatch.get(store, "shop", "nightly-2026-07-01").wait(timeout=0)
    exec(on_connect, names)
    frame = spark.read.parquet(names["out"])
    names["upsert"](frame, 0)
    checkpoint = json.loads(Path(names["checkpoint"], "metadata").read_text())["id"]
    with once_per_batch(store, "orders", 0, checkpoint=checkpoint) as batch:
        assert batch.done


@pytest.fixture
def other_python(tmp_path):
    """Has PySpark and pyarrow, but not Latchwork."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    return str(tmp_path / "venv" / "bin" / "python")


@pytest.mark.long
def test_executors_whose_python_lacks_latchwork_are_said_in_one_line(spark, other_python, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", other_python)
    with pytest.raises(Misconfigured) as failure:
        register(spark)
    said = str(failure.value)
    assert "No module named 'latchwork'" in said
    assert other_python in said
    assert "install Latchwork with its extra 'spark' there, or set $PYSPARK_PYTHON" in said
    assert "\n" not in said


@pytest.mark.long
def test_executors_whose_python_does_not_start_are_said_in_one_line(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    with pytest.raises(
        Misconfigured, match=r"ran no task: .*/nowhere/python.*; it must be of the driver's version"
    ) as failure:
        register(spark)
    assert "\n" not in str(failure.value)


@pytest.mark.long
def test_register_is_content_where_spark_has_found_the_source_by_itself(spark, monkeypatch):
    from pyspark.errors import AnalysisException
    from pyspark.sql.datasource import DataSourceRegistration

    class Found(AnalysisException):
        condition = "DATA_SOURCE_ALREADY_EXISTS"

        def __init__(self):
            super().__init__("The data source 'latchwork' already exists.")

        def getCondition(self):  # noqa: N802 - PySpark's name
            return self.condition

    def refuse(_registration, _source):
        raise Found

    monkeypatch.setattr(DataSourceRegistration, "register", refuse)
    register(spark)
    Found.condition = "ANOTHER"
    with pytest.raises(AnalysisException):
        register(spark)


@pytest.mark.parametrize(
    ("version", "absent", "said"),
    [
        (
            "3.5.6",
            "pyspark.sql.datasource",
            r"PySpark is 3\.5\.6; it must be 4\.2 or newer: pip install 'latchwork\[spark\]'",
        ),
        ("4.1.0", None, r"PySpark is 4\.1\.0; it must be 4\.2 or newer"),
        (None, "pyspark", r"pyspark.*: pip install 'latchwork\[spark\]'"),
    ],
)
def test_a_pyspark_that_is_too_old_or_missing_is_said_in_one_line(monkeypatch, version, absent, said):
    for name in ("latchwork.spark.datasource", absent):
        if name:
            monkeypatch.delitem(sys.modules, name, raising=False)
    if absent:
        monkeypatch.setitem(sys.modules, absent, None)  # as where it is not there: importing it fails
    if version:
        monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(Misconfigured, match=said) as refused:
        register(None)
    assert "\n" not in str(refused.value)
