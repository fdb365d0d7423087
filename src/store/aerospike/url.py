"""The URL of an Aerospike store: hosts, namespace, user, the source of secrets, and options.

No message repeats a part of a URL that may hold a piece of a password, as in one whose `@` or host was forgotten.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from ...errors import InvalidRequest, Misconfigured
from ...inputs import checked_store_name
from ...logs import Log
from ...plain import shown

log = Log(__name__)

DEFAULT_PORT = 3000
MAX_SECRET = 65_536
"""Bytes of a file that holds a password; it is one line."""
AUTH = ("internal", "external", "pki")
NUMBERS = {"socket_timeout": 3000, "total_timeout": 5000, "connect_timeout": 1000, "connections": 100}
TLS_TEXTS = ("cafile", "capath", "certfile", "keyfile", "protocols", "cipher_suite")
TLS_SWITCHES = ("crl_check", "crl_check_all")
"""The client's names; in a URL they begin with `tls_`."""
_TEXTS = (
    "tls_name", *(f"tls_{name}" for name in TLS_TEXTS), "tls_keyfile_password_file", "tls_keyfile_password_env",
    "auth", "cluster_name", "password_file", "password_env",
)  # fmt: skip
_SWITCHES = ("tls", *(f"tls_{name}" for name in TLS_SWITCHES), "require_sc", "services_alternate")
OPTIONS = tuple(sorted((*NUMBERS, *_TEXTS, *_SWITCHES)))
"""All options of a URL."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_URL = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(.*)", re.DOTALL)
"""RFC 3986, appendix B. `urlsplit` refuses an IPv6 address behind another host, in the newer ones of Python."""
_BRACKETED = re.compile(r"\[([^\[\]]+)\]")
"""An address that has colons."""
_SHOWABLE = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^:]*")
"""The part of an invalid host that may be shown: behind a colon a password may stand."""


@dataclass(frozen=True, slots=True)
class AerospikeUrl:
    """The content of a URL. Times in milliseconds, as in the server's own settings; `str` hides the password."""

    url: str = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    namespace: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        # Text without a colon before the @ is a user's name, or a password without its user.
        user = f"{self.user}:***@" if self.user and self._has_password else "***@" if self.user else ""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"aerospike://{user}{hosts}/{self.namespace}"

    @property
    def _has_password(self) -> bool:
        return self.password is not None or not {"password_file", "password_env"}.isdisjoint(self.options)

    def secret(self, name: str) -> str | None:
        """Return the secret that the options `<name>_file` or `<name>_env` lead to, read now. Raises
        `Misconfigured`.
        """
        file, variable = self.options.get(f"{name}_file"), self.options.get(f"{name}_env")
        if file is not None:
            return _line_of(Path(file), f"{name}_file")
        if variable is not None and not os.environ.get(variable):
            raise Misconfigured(
                f"{name}_env of the store's URL is {variable}, which is not set in this process: set it"
            )
        return None if variable is None else os.environ[variable]


def parse(url: str) -> AerospikeUrl:
    """Return the target of `aerospike://[user[:password]@]host[:port][,host...]/namespace[?options]`.

    The options, with their defaults, are in docs/operations.md. Any that begins with `tls_` turns TLS on. Raises
    `InvalidRequest` naming the part that is wrong.
    """
    if not isinstance(url, str):
        raise InvalidRequest(f"the store's URL is a {type(url).__name__}; it must be text")
    url = re.sub("[\t\r\n]", "", url)  # a secret is often read with the end of its line
    scheme, authority, path, query, fragment = _URL.findall(url)[0]  # it matches every text, and a part may be empty
    if scheme.lower() != "aerospike":
        raise InvalidRequest(f"the scheme of the store's URL is {shown(scheme[:20])}; it must be aerospike://")
    if "@" in path + query + fragment:
        raise InvalidRequest("the store's URL has an @ behind its host: write / ? # @ in a password as %2F %3F %23 %40")
    credentials, _, hosts = authority.rpartition("@")
    where = tuple(_host(host) for host in hosts.split(","))
    user, _, password = credentials.partition(":")
    namespace = path.strip("/")
    if not namespace or "/" in namespace:
        raise InvalidRequest(f"namespace {shown(namespace)} in the store's URL: end it with /NAMESPACE")
    checked_store_name("the namespace in the store's URL", namespace)
    options = _options(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))  # a plus is one, in a path too
    target = AerospikeUrl(url, where, namespace, unquote(user) or None, unquote(password) or None, options)
    named = [name for name in ("password_file", "password_env") if name in options]
    if named and target.password is not None:
        raise InvalidRequest(f"a password in the store's URL, and {named[0]}: leave one of them out")
    if (named or target.password is not None) and target.user is None:
        raise InvalidRequest("a password without a user in the store's URL: write aerospike://USER@HOST/NAMESPACE?...")
    return target


def _host(text: str) -> tuple[str, int]:
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, port = text, str(DEFAULT_PORT)
    bracketed = _BRACKETED.fullmatch(name)
    bare = bracketed[1] if bracketed else name
    odd = not bracketed and any(sign in name for sign in ":[]")
    if not bare or odd or not _is_number(port) or not 1 <= int(port) <= 65_535:
        found = _SHOWABLE.match(text)
        raise InvalidRequest(
            f"host {shown(found[0] if found else '')} in the store's URL; it must be NAME or NAME:PORT, the port 1 to "
            "65535, behind the @ where there is a user"
        )
    return bare, int(port)


def _options(given: list[tuple[str, str]]) -> dict[str, Any]:
    options: dict[str, Any] = dict(NUMBERS)
    for name, text in given:
        if name in NUMBERS:
            if not _is_number(text) or not 1 <= int(text) <= 1_000_000:
                raise InvalidRequest(f"option {name} of the store's URL; it must be a whole number, 1 to 1000000")
            options[name] = int(text)
        elif name in _SWITCHES:
            if text.lower() not in _FLAGS:
                raise InvalidRequest(f"option {name} of the store's URL; it must be true or false")
            options[name] = _FLAGS[text.lower()]
        elif name in _TEXTS and text:
            options[name] = text
        else:
            raise InvalidRequest(
                f"option {shown(name)} of the store's URL is unknown or empty; there are: {', '.join(OPTIONS)}"
            )
    if options.get("auth", "internal") not in AUTH:
        raise InvalidRequest(f"option auth of the store's URL; it must be one of {', '.join(AUTH)}")
    return _with_tls(options)


def _with_tls(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with TLS where one of them asks for it: left out, the login would go over the wire
    in clear.
    """
    asking = [name for name in options if name.startswith("tls_")]
    if asking and options.get("tls") is False:
        raise InvalidRequest(f"options tls=false and {asking[0]} of the store's URL: leave one of them out")
    if asking:
        options["tls"] = True
    if options.get("auth", "internal") != "internal" and not options.get("tls"):
        raise InvalidRequest(
            f"option auth={options['auth']} without TLS: it works only with it; say tls=true and tls_cafile"
        )
    for name in ("password", "tls_keyfile_password"):
        if f"{name}_file" in options and f"{name}_env" in options:
            raise InvalidRequest(f"options {name}_file and {name}_env of the store's URL: give one of them")
    return options


def _line_of(file: Path, option: str) -> str:
    try:
        # Without a wait: a pipe that nobody writes to would never open.
        with os.fdopen(os.open(file.expanduser(), os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(MAX_SECRET + 1) if stat.S_ISREG(mode) else b""
        line = text.decode().rstrip("\r\n")
    except (OSError, RuntimeError, ValueError) as failure:
        why = (
            failure.strerror if isinstance(failure, OSError) else "it is no text in UTF-8, or ~ names no user's folder"
        )
        raise Misconfigured(f"{option} of the store's URL, {str(file)!r}, cannot be read: {why}") from None
    if not stat.S_ISREG(mode):
        raise Misconfigured(
            f"{option} of the store's URL, {str(file)!r}, is a pipe or a device: name a file, as it is read for each "
            "connection"
        )
    if not line or len(text) > MAX_SECRET:
        raise Misconfigured(f"{option} of the store's URL, {str(file)!r}, is empty or too long: it is one line")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("%s, which holds a password, is open to others than its owner: chmod 600", file)
    return line


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
