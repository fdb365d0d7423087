"""The examples of deploy: their parts fit together, and the worker in them works."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from latchwork.store import MemoryStore

DEPLOY = Path(__file__).parent.parent / "deploy"
GRACE = 30
"""Seconds of `Worker(grace=)` that the examples are written for."""


def documents(name):
    return [*yaml.safe_load_all((DEPLOY / name).read_text())]


def test_each_orchestrator_gives_a_worker_longer_than_its_grace():
    (deployment,) = documents("kubernetes/worker.yaml")
    (compose,) = documents("compose/compose.yaml")
    unit = (DEPLOY / "systemd/latchwork-worker.service").read_text()
    given = (
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        int(compose["services"]["worker"]["stop_grace_period"].removesuffix("s")),
        int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]),
    )
    assert min(given) > GRACE


def test_the_probes_are_paths_that_the_worker_serves():
    from latchwork.cli.probe import Probe
    from latchwork.queue import QueueRegistry, Worker

    (deployment,) = documents("kubernetes/worker.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    paths = [container[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    (scaled,) = documents("kubernetes/keda.yaml")
    paths.append(re.sub(r"^http://[^/]+", "", scaled["spec"]["triggers"][0]["metadata"]["url"]))
    with Probe(Worker(QueueRegistry(MemoryStore(), "shop")), "127.0.0.1", 0) as probe:
        assert [path for path in paths if b"there are" in probe.answer(path)[2]] == []


def test_the_worker_of_the_compose_file_handles_what_is_published(monkeypatch, caplog):
    store = MemoryStore()
    monkeypatch.setattr("latchwork.connect", lambda: store)
    monkeypatch.setattr("latchwork.observe.observe", lambda store, _: store)
    monkeypatch.setattr("latchwork.observe.prometheus.PrometheusTelemetry", lambda _: None)
    spec = importlib.util.spec_from_file_location("compose_jobs", DEPLOY / "compose/jobs.py")
    jobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jobs)
    assert jobs.worker.grace == GRACE
    queue = jobs.registry.get("jobs")
    queue.publish({"load": "orders"})
    (delivery,) = queue.receive()
    with caplog.at_level("INFO"):
        jobs.load(delivery)
    assert "loaded orders" in caplog.text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    unit = (DEPLOY / "systemd/latchwork-worker.service").read_text()
    there = re.sub("(?m)^ExecStart=.*$", "ExecStart=/bin/true", unit)  # the program is not installed here
    (tmp_path / "latchwork-worker.service").write_text(there)
    command = ["systemd-analyze", "verify", str(tmp_path / "latchwork-worker.service")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
