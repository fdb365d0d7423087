"""A test is skipped where its server is not on the machine; all else that goes wrong with a server is a failure."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.support.real_servers import REQUIRED, or_skip
from tools import servers


class Broken(servers.Process):
    """A server that is there, and ends with what is wrong with it."""

    def command(self):
        return ["sh", "-c", "echo port 3000 is taken; exit 1"]

    def is_ready(self):
        return False


def start():
    raise servers.Unreachable("no such server")


def test_a_test_whose_server_is_not_there_is_skipped_or_fails_where_servers_are_required(monkeypatch):
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no real server: no such server"), or_skip():
        start()
    monkeypatch.setenv(REQUIRED, "required")
    with pytest.raises(pytest.fail.Exception, match="no such server"), or_skip():
        start()


def test_a_server_that_is_there_and_does_not_start_is_a_failure_that_says_why():
    with pytest.raises(servers.DidNotStart, match="port 3000 is taken"), or_skip():
        servers.started(Broken("broken"))


def test_a_server_that_the_environment_names_and_that_does_not_answer_is_a_failure(monkeypatch):
    (port,) = servers.free_ports(1)
    monkeypatch.setenv(servers.VARIABLE, f"127.0.0.1:{port}/test")
    with pytest.raises(servers.DidNotStart, match=f"127.0.0.1:{port}/test"), or_skip():
        servers.start_aerospike()


def test_a_free_port_is_given_to_nobody_else_and_a_server_can_listen_there():
    ports = servers.free_ports(200)
    assert len({*ports, *servers.free_ports(200)}) == 400
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", ports[0])) as client, server.accept()[0]:
                assert client.getsockname()[1] not in ports
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_for_development_ends_with_its_command(number):
    with or_skip():
        if shutil.which("asd") is None:
            raise servers.Unreachable("no asd on the PATH")
    command = subprocess.Popen([sys.executable, "-m", "tools.start_server"], stdout=subprocess.PIPE, text=True)
    url = command.stdout.readline().strip().partition("aerospike://")[2]
    command.send_signal(number)
    assert command.wait(60) == 0
    host, _, port = url.partition("/")[0].partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
