"""Real servers for tests and benchmarks: Aerospike and ZooKeeper, on free loopback ports, ended by their process id.

An Aerospike is, first found wins: `$LATCHWORK_TEST_AEROSPIKE` (host:port/namespace), an `asd` on the PATH, a Docker
that answers. Without one, the tests that need it are skipped, and the closing summary of the run says so. One that is
there and does not start is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "LATCHWORK_TEST_AEROSPIKE"
IMAGE = "aerospike/aerospike-server:8.1"
START_TIMEOUT = 180.0
"""Seconds; an `asd` beside twenty busy processes has taken more than 60."""

_ASD_CONFIG = """
service {{
  proto-fd-max 1024
  work-directory {directory}/work
  cluster-name latchwork-test
}}
logging {{
  file {directory}/asd.log {{
    context any warning
  }}
}}
mod-lua {{
  user-path {directory}/lua
}}
network {{
  service {{
    address {listen}
    port {port}
    access-address 127.0.0.1
    alternate-access-address 127.0.0.1
    alternate-access-port {proxy_port}
  }}
  heartbeat {{
    mode mesh
    address 127.0.0.1
    port {heartbeat_port}
    interval 150
    timeout 10
  }}
  fabric {{
    address 127.0.0.1
    port {fabric_port}
  }}
  admin {{
    address 127.0.0.1
    port {admin_port}
  }}
}}
namespace {namespace} {{
  replication-factor 1
  nsup-period {nsup_period}
  default-ttl 0
  storage-engine {storage}
}}
"""
_IN_MEMORY = "memory {{\n    data-size {data_size}\n  }}"
_IN_A_FILE = "device {{\n    file {directory}/records\n    filesize {data_size}\n    flush-max-ms 1\n  }}"


class Unreachable(Exception):
    """There is no such server on this machine; the tests that need it are skipped."""


class DidNotStart(Exception):
    """The server is on this machine, and it ended, or it did not answer in time."""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, and that nobody else is given until this process ends.

    A socket that does not listen keeps each of them. A server can listen there all the same, as it sets SO_REUSEADDR
    too.
    """
    ports = []
    for _ in range(count):
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        ports.append(kept.getsockname()[1])
        kept.detach()  # nothing closes it before the process ends
    return ports


def until(ready, timeout: float = START_TIMEOUT, pause: float = 0.05):
    """What `ready` returns once that is true; raises `DidNotStart` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(pause)
    raise DidNotStart(f"{ready.__name__} did not become true within {timeout} s")


@dataclass(frozen=True)
class External:
    """A server that somebody else runs."""

    host: str
    port: int
    namespace: str
    proxy_port: int | None = None

    @property
    def url(self) -> str:
        return f"aerospike://{self.host}:{self.port}/{self.namespace}"

    def close(self) -> None:
        """It is not ours to end."""


class Process(ABC):
    """A server process of our own, on the same ports and directory however often it is restarted."""

    def __init__(self, name: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"latchwork-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts it."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(self.command(), stdout=output, stderr=output, cwd=self.directory)
        until(self._answers)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise DidNotStart((self.directory / "output").read_text(errors="replace")[-2000:])
        return self.is_ready()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP pauses it, which it is when this returns; SIGCONT lets it go on."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Asd(Process):
    """An Aerospike server with one namespace in memory: a restart comes back empty.

    With `durable` it is in a file: what was acknowledged a few milliseconds before it is ended, or killed, is there
    again, and so may be what was deleted, as deletes are not durable.  Clients that ask for the alternate services
    (`services_alternate=true`) are sent to `proxy_port`.
    """

    host, namespace = "127.0.0.1", "test"

    def __init__(self, *, nsup_period: int = 2, data_size: str = "512M", durable: bool = False) -> None:
        super().__init__("asd")
        storage = (_IN_A_FILE if durable else _IN_MEMORY).format(directory=self.directory, data_size=data_size)
        self.port, self.proxy_port, *others = free_ports(5)
        for folder in ("work/smd", "lua"):
            (self.directory / folder).mkdir(parents=True)
        names = ("heartbeat_port", "fabric_port", "admin_port")
        self.config = self.directory / "asd.conf"
        self.config.write_text(
            _ASD_CONFIG.format(
                directory=self.directory, listen="127.0.0.1", port=self.port, proxy_port=self.proxy_port,
                namespace=self.namespace, nsup_period=nsup_period, storage=storage,
                **dict(zip(names, others, strict=True)),
            )
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"aerospike://{self.host}:{self.port}/{self.namespace}"

    def command(self) -> list[str]:
        asd = shutil.which("asd")
        if asd is None:
            raise Unreachable("no asd on the PATH")
        return [asd, "--foreground", "--config-file", str(self.config)]

    def is_ready(self) -> bool:
        return puts(self.host, self.port, self.namespace)


class AsdWithClock(Asd):
    """An Aerospike server whose wall clock a test sets; its monotonic clock goes on as ever. Needs libfaketime."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = self.directory / "ahead"
        self.set_clock(0)

    def set_clock(self, ahead: int) -> None:
        """Let the server's clock be so many seconds ahead of true time, from now on."""
        written = self.directory / "written"
        written.write_text(f"{ahead:+d}\n")
        written.replace(self._ahead)

    def command(self) -> list[str]:
        library = next(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            raise Unreachable("no libfaketime (Debian: apt-get install libfaketime)")
        faked = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": self._ahead,
            "FAKETIME_NO_CACHE": 1,
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
        }
        return ["env", *(f"{name}={value}" for name, value in faked.items()), *super().command()]


class Container:
    """The same in a Docker container, whose port is the same inside and outside so that clients find the node."""

    host, namespace = "127.0.0.1", "test"

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer

        self.directory = Path(tempfile.mkdtemp(prefix="latchwork-docker-"))
        self.port, self.proxy_port, *others = free_ports(5)
        (self.directory / "asd.conf").write_text(
            _ASD_CONFIG.format(
                directory="/tmp", listen="any", port=self.port, proxy_port=self.proxy_port, namespace=self.namespace,
                nsup_period=2, storage=_IN_MEMORY.format(data_size="512M"),
                heartbeat_port=others[0], fabric_port=others[1], admin_port=others[2],
            )
        )  # fmt: skip
        self._container = (
            DockerContainer(IMAGE, entrypoint="sh")
            .with_bind_ports(self.port, self.port)
            .with_volume_mapping(str(self.directory), "/latchwork", "ro")
            .with_command(
                '-c "mkdir -p /tmp/work/smd /tmp/lua && exec asd --foreground --config-file /latchwork/asd.conf"'
            )
        )
        try:
            self._container.start()
            until(lambda: puts(self.host, self.port, self.namespace))
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"aerospike://{self.host}:{self.port}/{self.namespace}"

    def close(self) -> None:
        self._container.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class ZooKeeper(Process):
    """The ZooKeeper whose jars PySpark carries; sessions may be as short as 200 ms. A restart keeps its data."""

    def __init__(self, *, tick: int = 100) -> None:
        super().__init__("zookeeper")
        (self.port,) = free_ports(1)
        self.hosts = f"127.0.0.1:{self.port}"
        (self.directory / "zoo.cfg").write_text(
            f"dataDir={self.directory}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\ntickTime={tick}\n"
            "maxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=ruok\n"
        )

    def command(self) -> list[str]:
        java, jars = shutil.which("java"), spark_jars()
        if java is None or jars is None:
            raise Unreachable("java and PySpark are needed to start a ZooKeeper")
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [java, *options, "-cp", f"{jars}/*", main, str(self.directory / "zoo.cfg")]

    def is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as asked:
            asked.sendall(b"ruok")
            return asked.recv(16) == b"imok"
        return False


def spark_jars() -> Path | None:
    """Where PySpark keeps its jars."""
    if given := os.environ.get("SPARK_JARS"):
        return Path(given)
    try:
        import pyspark
    except ImportError:
        return None
    jars = Path(pyspark.__file__).parent / "jars"
    return jars if any(jars.glob("zookeeper-3*.jar")) else None


def client_of(*nodes: Any) -> Any:
    """Return a client of nodes that have started, on a machine that may be slow."""
    import aerospike

    return aerospike.client({"hosts": [(node.host, node.port) for node in nodes], "connect_timeout": 10_000}).connect()


def puts(host: str, port: int, namespace: str) -> bool:
    """Whether a server there takes a write."""
    import aerospike

    client = None
    try:
        client = aerospike.client({"hosts": [(host, port)]}).connect()
        client.put((namespace, "ready", "ready"), {"ready": 1})
        with suppress(aerospike.exception.ForbiddenError):  # no tombstone: refused where it is strongly consistent
            client.remove((namespace, "ready", "ready"))
        return True
    except aerospike.exception.AerospikeError:
        return False
    finally:
        if client is not None:
            client.close()


def docker_answers() -> bool:
    """Whether there is a Docker that says so within a few seconds."""
    if shutil.which("docker") is None:
        return False
    with suppress(subprocess.SubprocessError, OSError):
        return subprocess.run(["docker", "info"], capture_output=True, timeout=5, check=False).returncode == 0
    return False


def start_aerospike() -> External | Asd | Container:
    """An Aerospike server for the tests. Raises `Unreachable` where there is none, and `DidNotStart`."""
    if named := os.environ.get(VARIABLE):
        where, _, namespace = named.rpartition("/")
        host, _, port = where.rpartition(":")
        if not puts(host, int(port), namespace):
            raise DidNotStart(f"no Aerospike takes a write at {named}, which {VARIABLE} names")
        return External(host, int(port), namespace)
    if shutil.which("asd"):
        return started(Asd())
    if docker_answers():
        return contained()
    raise Unreachable(f"no Aerospike: set {VARIABLE}=host:port/namespace, put asd on the PATH, or start Docker")


def contained() -> Container:
    """The server in a container. Raises `Unreachable` where there is no image to be had."""
    from docker.errors import DockerException

    try:
        return Container()
    except DockerException as failure:
        reason = str(failure).partition("\n")[0]
        raise Unreachable(f"no Aerospike: no asd on the PATH, and Docker cannot run {IMAGE}: {reason}") from failure


def started(server: Process) -> Process:
    """The server, once it answers; where it does not, nothing of it is left."""
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
