"""The folder of Airflow in these tests, and its settings: they are read when Airflow is imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

HOME = tempfile.mkdtemp(prefix="latchwork-airflow-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": HOME,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
}
