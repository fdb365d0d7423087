"""The processes of `latency`: who publishes, who handles, and who only waits; ours and those of other systems.

Run as `python benchmarks/_latency_roles.py SYSTEM ROLE URL NAMES`, also by an interpreter that has the clients of other
systems and none of ours. A publisher reads from its standard input to which of the queues it publishes, how often, and
at how many a second. A consumer prints for how many milliseconds each message was on its way: all processes of a
machine have one monotonic clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

FIELD, GROUP = b"at", "bench"
Publish = Callable[[float], object]
"""Publishes a message with the time at which that began, to one queue."""


def arrived(at: float) -> None:
    """Say for how long a message was on its way."""
    print(f"{(time.monotonic() - at) * 1000:.3f}", flush=True)


def stay() -> None:
    """Live until the standard input ends."""
    print("ready", flush=True)
    sys.stdin.read()


def publishing(publishes: dict[str, Publish]) -> None:
    """Publish as each line says: to which queue, how many messages, and how many a second."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, number, rate = line.split()
        began = time.monotonic()
        for place in range(int(number)):
            time.sleep(max(0.0, began + place / float(rate) - time.monotonic()))
            publishes[name](time.monotonic())
        print("done", flush=True)


# ---- ours


def latchwork(role: str, url: str, names: list[str]) -> None:
    from latchwork import connect  # noqa: PLC0415 - other systems' interpreters have none of this
    from latchwork.queue import Consumer, QueueRegistry  # noqa: PLC0415

    registry = QueueRegistry(connect(url), "latency")
    queues = {name: registry.get(name) for name in names}
    if role == "publish":
        publishing({name: queue.publish for name, queue in queues.items()})
    else:
        with Consumer(queues[names[0]], lambda delivery: arrived(delivery.payload)):
            stay()


# ---- a Redis stream by hand


def stream(role: str, url: str, names: list[str]) -> None:
    import redis  # noqa: PLC0415 - where it is installed

    client = redis.Redis.from_url(url, socket_timeout=None)  # who blocks waits for longer than any call takes
    if role == "publish":
        publishing({name: lambda at, name=name: client.xadd(name, {FIELD: repr(at)}) for name in names})
        return
    (name,) = names
    client.xgroup_create(name, GROUP, mkstream=True)
    print("ready", flush=True)
    while True:
        for _, messages in client.xreadgroup(GROUP, "me", {name: ">"}, count=1, block=60_000) or ():
            for id_, fields in messages:
                arrived(float(fields[FIELD]))
                client.xack(name, GROUP, id_)


# ---- dramatiq


def dramatiq(role: str, url: str, names: list[str]) -> None:
    import dramatiq as library  # noqa: PLC0415 - where it is installed
    from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415

    broker = RedisBroker(url=url)
    actors = {name: library.actor(arrived, broker=broker, queue_name=name, actor_name=name) for name in names}
    if role == "publish":
        publishing({name: actor.send for name, actor in actors.items()})
    else:
        worker = library.Worker(broker, worker_threads=1)
        worker.start()
        stay()
        worker.stop()


SYSTEMS = {"latchwork": latchwork, "stream": stream, "dramatiq": dramatiq}

if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules have the names of others'
    system, role, url, *names = sys.argv[1:]
    SYSTEMS[system](role, url, names)
