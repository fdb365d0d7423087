"""TLS and logins by URL: what asks for TLS turns it on, what is verified, and where secrets may be kept."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from pathlib import Path

import pytest

from latchwork.errors import InvalidRequest, LatchworkError, Misconfigured, Unavailable
from latchwork.store import Exists, Key, Put
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.aerospike.connection import config_of
from latchwork.store.aerospike.url import OPTIONS, parse
from tests.support.tls import Certificates, TlsProxy
from tests.support.waiting import described

KEY = Key("tls", "k")
HOST = "aerospike://h/ns?"
TLS_OPTIONS = {
    "tls_name": "db.example",
    "tls_cafile": "/ca.pem",
    "tls_capath": "/cas",
    "tls_certfile": "/mine.pem",
    "tls_keyfile": "/mine.key",
    "tls_protocols": "TLSv1.2",
    "tls_cipher_suite": "ALL:!COMPLEMENTOFDEFAULT:!eNULL",
    "tls_crl_check": "true",
    "tls_crl_check_all": "true",
}

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no real server: no openssl on the PATH")


# ---- what asks for TLS


@pytest.mark.parametrize("option", TLS_OPTIONS)
def test_an_option_of_tls_turns_it_on(option):
    config = config_of(parse(f"{HOST}{option}={TLS_OPTIONS[option]}"))
    assert config["tls"]["enable"] is True
    assert config_of(parse(f"{HOST}tls=true&{option}={TLS_OPTIONS[option]}")) == config


@pytest.mark.parametrize("option", [*TLS_OPTIONS, "tls_keyfile_password_env", "tls_keyfile_password_file"])
def test_tls_off_beside_an_option_of_tls_is_refused(option):
    for order in (
        f"tls=false&{option}={TLS_OPTIONS.get(option, 'X')}",
        f"{option}={TLS_OPTIONS.get(option, 'X')}&tls=0",
    ):
        with pytest.raises(InvalidRequest, match=f"tls=false and {option}.*leave one of them out"):
            parse(HOST + order)


def test_tls_stays_off_where_nothing_asks_for_it():
    assert "tls" not in config_of(parse(f"{HOST}tls=false&connections=4"))
    assert "tls" not in config_of(parse(HOST))


def test_a_plus_in_an_option_is_a_plus():
    options = parse(f"{HOST}tls_protocols=-all +TLSv1.2&tls_cafile=/c++/ca%2B.pem").options
    assert (options["tls_protocols"], options["tls_cafile"]) == ("-all +TLSv1.2", "/c++/ca+.pem")


def test_every_option_of_tls_reaches_the_client():
    config = config_of(parse(HOST + "&".join(f"{name}={value}" for name, value in TLS_OPTIONS.items())))
    assert config["hosts"] == [("h", 3000, "db.example")]
    assert config["tls"] == {
        "enable": True, "cafile": "/ca.pem", "capath": "/cas", "certfile": "/mine.pem", "keyfile": "/mine.key",
        "protocols": "TLSv1.2", "cipher_suite": "ALL:!COMPLEMENTOFDEFAULT:!eNULL",
        "crl_check": True, "crl_check_all": True,
    }  # fmt: skip


@pytest.mark.parametrize("auth", ["external", "pki"])
def test_a_login_that_needs_tls_is_refused_without_it(auth):
    with pytest.raises(InvalidRequest, match=f"auth={auth} without TLS"):
        parse(f"{HOST}auth={auth}")
    assert config_of(parse(f"{HOST}auth={auth}&tls_cafile=/ca.pem"))["tls"]["enable"]


class Eavesdropper:
    """A server in clear that keeps what it is sent first, and hangs up."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._hear, args=(client,), daemon=True).start()

    def _hear(self, client: socket.socket) -> None:
        with client:
            self.heard += client.recv(65536)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("option", ["tls_name=db.example", "tls_crl_check=true", "tls_capath=/etc/ssl/certs"])
def test_no_user_name_goes_over_the_wire_in_clear_where_an_option_of_tls_is_given(option):
    server = Eavesdropper()
    where = f"aerospike://bobby:canary@127.0.0.1:{server.port}/ns"
    store = AerospikeStore.from_url(f"{where}?connect_timeout=20000&{option}")
    with pytest.raises(LatchworkError):  # only when the server has heard it and hung up, however slow the machine is
        store._get(KEY, ())
    server.close()
    assert server.heard[:2] == b"\x16\x03"  # the handshake of TLS
    assert b"bobby" not in server.heard


def test_every_option_is_in_the_table_of_the_operations_page():
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    section = page.partition("## The URL of an Aerospike store")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == list(OPTIONS)


# ---- secrets in files and in the environment


@pytest.mark.parametrize("name", ["password", "tls_keyfile_password"])
def test_a_secret_is_read_from_a_file_or_from_the_environment_when_the_client_is_made(name, tmp_path, monkeypatch):
    def found(options):
        config = config_of(parse(f"aerospike://me@h/ns?{options}"))
        return config["password"] if name == "password" else config["tls"]["keyfile_pw"]

    file = tmp_path / "secret"
    file.write_text("canary\n")
    file.chmod(0o600)
    assert found(f"{name}_file={file}") == "canary"
    target = parse(f"aerospike://me@h/ns?{name}_file={file}")
    file.write_text("changed since\r\n")
    assert target.secret(name) == "changed since"
    monkeypatch.setenv("DB_SECRET", "canary")
    assert found(f"{name}_env=DB_SECRET") == "canary"


@pytest.mark.parametrize("name", ["password", "tls_keyfile_password"])
def test_a_secret_that_is_not_to_be_had_is_named_by_its_place(name, tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    empty, binary, long = tmp_path / "empty", tmp_path / "binary", tmp_path / "long"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    long.write_text("x" * 70_000)
    for option, told in (
        (f"{name}_env=NOT_SET", "NOT_SET, which is not set"), (f"{name}_file={tmp_path}/none", "No such file"),
        (f"{name}_file={empty}", "empty or too long"), (f"{name}_file={binary}", "UTF-8"),
        (f"{name}_file={long}", "empty or too long"), (f"{name}_file=~nobody-of-that-name/x", "no user's folder"),
    ):  # fmt: skip
        with pytest.raises(Misconfigured, match=told) as refused:
            AerospikeStore.from_url(f"aerospike://me@127.0.0.1:1/ns?{option}")._get(KEY, ())
        assert f"{name}_" in str(refused.value)


def test_a_file_with_a_secret_that_others_may_read_is_told_in_the_log(tmp_path, caplog):
    file = tmp_path / "secret"
    file.write_text("canary")
    for mode, warned in ((0o600, False), (0o640, True), (0o604, True)):
        caplog.clear()
        file.chmod(mode)
        config_of(parse(f"aerospike://me@h/ns?password_file={file}"))
        assert ("chmod 600" in caplog.text) is warned
        assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("aerospike://me:pw@h/ns?password_env=X", "leave one of them out"),
        ("aerospike://me:pw@h/ns?password_file=X", "leave one of them out"),
        ("aerospike://me@h/ns?password_file=X&password_env=Y", "give one of them"),
        ("aerospike://h/ns?tls_keyfile_password_file=X&tls_keyfile_password_env=Y", "give one of them"),
        ("aerospike://h/ns?password_env=X", "without a user"),
        ("aerospike://:pw@h/ns", "without a user"),
    ],
)
def test_two_passwords_or_one_without_a_user_are_refused(url, told):
    with pytest.raises(InvalidRequest, match=told):
        AerospikeStore.from_url(url)


# ---- a real server behind TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def behind_tls(aerospike_server, aerospike_store, certificates):
    """Gives a URL of the real server behind TLS, with these options; the server's certificate is for db.example."""
    if aerospike_server.proxy_port is None:
        pytest.skip("no real server: the one in the environment does not send its clients to a proxy")
    made = []

    def url(options, clients=None):
        made.append(
            TlsProxy(aerospike_server.proxy_port, aerospike_server.port, certificates.sign("db.example"), clients)
        )
        return f"aerospike://127.0.0.1:{aerospike_server.proxy_port}/test?services_alternate=true&connect_timeout=3000&{options}"

    url.proxies = made
    yield url
    for proxy in made:
        proxy.close()


@needs_openssl
def test_a_store_works_over_tls(behind_tls, certificates):
    url = behind_tls(f"tls_cafile={certificates.authority}&tls_name=db.example&tls_protocols=-all +TLSv1.2")
    store = AerospikeStore.from_url(url)
    store.operate(KEY, Put("n", 1), exists=Exists.ANY)
    assert store.get(KEY).bins == {"n": 1}
    assert described(store).backend == "aerospike"
    assert set(behind_tls.proxies[0].versions) == {"TLSv1.2"}
    store.close()


@needs_openssl
@pytest.mark.parametrize("wrong", ["tls_name=other.example", "", "tls_name=db.example&tls_capath=/nowhere"])
def test_a_server_whose_name_or_authority_is_another_is_not_talked_to(behind_tls, certificates, wrong):
    trusted = "tls=true" if "capath" in wrong else f"tls_cafile={certificates.authority}"
    store = AerospikeStore.from_url(behind_tls(f"{trusted}&{wrong}"))
    with pytest.raises(Unavailable, match=r"whose certificate is for tls_name and signed by one of tls_cafile"):
        store._get(KEY, ())
    assert behind_tls.proxies[0].versions == []


@needs_openssl
def test_a_client_shows_its_certificate_whose_key_has_a_password(behind_tls, certificates, tmp_path, monkeypatch):
    certificate, key = certificates.sign("worker.example", password="canary")
    ours = f"tls_cafile={certificates.authority}&tls_name=db.example&tls_certfile={certificate}&tls_keyfile={key}"
    monkeypatch.setenv("KEY_PASSWORD", "canary")
    store = AerospikeStore.from_url(
        behind_tls(f"{ours}&tls_keyfile_password_env=KEY_PASSWORD", clients=certificates.authority)
    )
    store.operate(KEY, Put("n", 2), exists=Exists.ANY)
    assert "worker.example" in behind_tls.proxies[0].clients
    store.close()
    monkeypatch.setenv("KEY_PASSWORD", "another")
    with pytest.raises(LatchworkError) as refused:
        store._get(KEY, ())
    assert "another" not in str(refused.value)


def test_a_pipe_that_nobody_writes_to_is_no_file_of_a_password(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Misconfigured, match="is a pipe or a device"):
        config_of(parse(f"aerospike://me@h/ns?password_file={tmp_path}/pipe"))
