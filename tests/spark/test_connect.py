"""Everything of `latchwork.spark` on a real Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PYTHONPATH

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_source_sink_latch_stream_and_sweep_work_on_spark_connect(tmp_path):
    """In a process of its own: a session on Connect changes what PySpark's functions mean in the whole process."""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "SPARK_TESTING": "1"}  # the server takes a free port then
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_job", f"sqlite:{tmp_path / 'store.db'}", str(tmp_path)],
        capture_output=True, text=True, timeout=900, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session",
        "latch": [True, []],
        "read": [True, list(range(60))],
        "stream": [60, 60, 0, 0, ["stream_batches", "stream_lag", "stream_rate"]],
        "sweep": [4, [], 4],
    }
