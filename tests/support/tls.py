"""TLS in front of a server that speaks none: certificates of a day, and a proxy that ends the encryption.

The community edition has no TLS. A client that uses it asks for the addresses of the nodes by other names, which the
proxy translates on the way there and back; connect with `services_alternate=true` and the server's `proxy_port`.
"""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

HEADER = 8
INFO = 1
NAMES = ((b"service-tls-alt", b"service-clear-alt"), (b"peers-tls-alt", b"peers-clear-alt"))
"""What a client asks for with TLS, and without."""


class Certificates:
    """A certificate authority in a folder, and what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority")
        self.authority = folder / "ca.pem"

    def sign(self, name: str, password: str | None = None) -> tuple[Path, Path]:
        """A certificate for this name, and its key, encrypted where there is a password."""
        encryption = "-nodes" if password is None else f"-passout pass:{password}"
        self._openssl(f"req -newkey rsa:2048 {encryption} -keyout {name}.key -out {name}.csr -subj /CN={name}")
        self._openssl(f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out {name}.pem")
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _openssl(self, words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True)


class TlsProxy:
    """Takes TLS on `port` and passes on in clear to the server. `versions` and `clients` say how clients came."""

    def __init__(self, port: int, server: int, certificate: tuple[Path, Path], clients: Path | None = None) -> None:
        self.port, self._server = port, server
        self.versions: list[str] = []
        self.clients: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients)
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), plain, self._context.wrap_socket(plain, server_side=True) as client:
            self.versions.append(client.version())
            for entry in (client.getpeercert() or {}).get("subject", ()):
                self.clients.extend(value for _, value in entry)
            with socket.create_connection(("127.0.0.1", self._server)) as server:
                back = threading.Thread(target=_pass, args=(server, client, 1), daemon=True)
                back.start()
                _pass(client, server, 0)
                back.join(5)


def _pass(source: socket.socket, sink: socket.socket, back: int) -> None:
    with suppress(OSError):
        while len(header := _read(source, HEADER)) == HEADER:
            size = int.from_bytes(header[2:], "big")
            body = _read(source, size)
            if header[1] == INFO:
                for names in NAMES:
                    body = body.replace(names[back], names[1 - back])
                header = header[:2] + struct.pack(">Q", len(body))[2:]
            sink.sendall(header + body)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := source.recv(size - len(data))):
        data += more
    return data
