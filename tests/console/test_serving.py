"""The command `latchwork console`: what it says where it cannot listen, and by which addresses it may be asked for."""

from __future__ import annotations

import json
import socket

import pytest
from starlette.testclient import TestClient

from latchwork.cli import main
from latchwork.store import Exists, Key, Put
from latchwork.store.connect import connect
from tools.servers import free_ports

from .conftest import serving

SECRET = "0123456789abcdef0123"


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("LATCHWORK_CONSOLE_SECRET", SECRET)
    store = connect(f"sqlite:{tmp_path / 'shop.db'}")
    store.operate(Key("any", "thing"), Put("bin", 1), exists=Exists.ANY)
    store.close()
    return f"sqlite:{tmp_path / 'shop.db'}"


def served(url, monkeypatch, *more):
    """The application that the command would serve, and the addresses at which it listens."""
    (port,), found = free_ports(1), serving(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["--store", url, "console", "--port", str(port), *more])
    assert not ended.value.code
    return found.config.app, found.addresses


@pytest.mark.parametrize(
    ("host", "asked", "passes"),
    [
        ("127.0.0.2", "127.0.0.2", True), ("127.0.0.2", "127.0.0.3", False), ("127.0.0.2", "localhost", True),
        ("0.0.0.0", "0.0.0.0", False), ("0.0.0.0", "127.0.0.1", True),
    ],
)  # fmt: skip
def test_the_address_that_it_names_may_be_asked_for(url, monkeypatch, host, asked, passes):
    app, addresses = served(url, monkeypatch, "--host", host)
    assert addresses == [host]
    assert (TestClient(app, base_url=f"http://{asked}").get("/sign-in").status_code == 200) == passes


def test_a_port_that_is_taken_is_told_with_the_remedy_and_not_as_not_found(url, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        main(["--store", url, "console", "--json", "--port", str(taken.getsockname()[1])])
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert "choose another port" in json.loads(told.out)["message"]
    assert "the console is at" not in told.err
