"""The examples of deploy: their parts fit together, and the worker and the console in them work."""

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


def consoles():
    """The arguments of the console in each example, and the folders in which it finds its secrets."""
    deployment, _ = documents("kubernetes/console/console.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (compose,) = documents("compose/compose.yaml")
    service = compose["services"]["console"]
    assert service["secrets"] == ["console"]
    unit = (DEPLOY / "systemd/latchwork-console.service").read_text()
    assert "LoadCredential=console-secret:" in unit
    return {
        "kubernetes": (container["args"], container["volumeMounts"][0]["mountPath"]),
        "compose": (service["command"], "/run/secrets"),
        "systemd": (re.search(r"ExecStart=\S+/latchwork (.+)", unit)[1].split(), "%d"),
    }


@pytest.mark.parametrize("example", ["kubernetes", "compose", "systemd"])
def test_the_console_lets_nobody_in_without_its_secret_and_answers_its_probe(example, tmp_path, monkeypatch):
    from starlette.testclient import TestClient

    from latchwork.cli import main

    arguments, folder = consoles()[example]
    file = arguments[arguments.index("--secret-file") + 1]
    assert file.startswith(f"{folder}/")
    (tmp_path / "secret").write_text("a long enough secret\n")
    served = {}

    def listening(host, port, **_):
        served["port"] = port
        return []

    def run(server, sockets):
        served["app"], server.started = server.config.app, True

    monkeypatch.delenv("LATCHWORK_CONSOLE_SECRET", raising=False)
    monkeypatch.setattr("latchwork.console.command.listening", listening)
    monkeypatch.setattr("uvicorn.Server.run", run)
    with pytest.raises(SystemExit) as ended:
        main(["--store", "memory:", *(str(tmp_path / "secret") if one == file else one for one in arguments)])
    assert not ended.value.code
    assert served["port"] == 8765
    http = TestClient(served["app"], base_url="http://localhost:8765")
    assert http.get("/api/v0/overview").status_code == 401
    assert http.get("/api/v0/overview", headers={"Authorization": "Bearer a long enough secret"}).status_code == 200
    assert http.get("/sign-in").status_code == 200


def test_the_console_is_probed_where_it_answers_without_the_secret_and_by_a_host_that_it_knows():
    from latchwork.console.gate import OPEN
    from latchwork.console.site import LOCAL

    deployment, service = documents("kubernetes/console/console.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for kind in ("readinessProbe", "livenessProbe"):
        asked = container[kind]["httpGet"]
        assert asked["path"] in OPEN
        assert asked["httpHeaders"][0]["value"] in LOCAL
    assert service["spec"]["type"] == "ClusterIP"
    (compose,) = documents("compose/compose.yaml")
    assert "http://127.0.0.1:8765/sign-in" in compose["services"]["console"]["healthcheck"]["test"][-1]
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["console"]["ports"])


def test_the_worker_and_the_console_are_told_apart_by_their_labels():
    """Else the service of one would send to the other."""
    pairs = [documents(f"kubernetes/{part}kustomization.yaml")[0]["labels"][0]["pairs"] for part in ("", "console/")]
    assert pairs[0] != pairs[1]


def test_the_image_has_all_that_its_commands_need():
    extras = set(re.search(r"\[(.+?)\]\"", (DEPLOY / "Dockerfile").read_text())[1].split(","))
    assert extras == {"cli", "console", "metrics"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("name", ["latchwork-worker.service", "latchwork-console.service"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path, name):
    unit = (DEPLOY / "systemd" / name).read_text()
    there = re.sub("(?m)^ExecStart=.*$", "ExecStart=/bin/true", unit)  # the program is not installed here
    (tmp_path / name).write_text(there)
    command = ["systemd-analyze", "verify", str(tmp_path / name)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
