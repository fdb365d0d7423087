"""Starts an Aerospike for development and keeps it until Ctrl-C: `make server`.

It is the server that the tests use: an `asd` on the PATH, else a container of Docker. It begins empty, and keeps
nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from tools import servers


def main() -> int:
    """Start it, say how to use it, and wait. The exit status is 1 where there is none to start."""
    os.environ.pop(servers.VARIABLE, None)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts in the background ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        server = servers.start_aerospike()
    except (servers.Unreachable, servers.DidNotStart) as reason:
        print(reason, file=sys.stderr)
        return 1
    try:
        with suppress(KeyboardInterrupt):
            print(f"export LATCHWORK_STORE={server.url}\nCtrl-C ends it", flush=True)
            signal.pause()
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
