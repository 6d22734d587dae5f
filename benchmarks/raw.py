"""The floor: what the machine itself takes, with no library between."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from benchmarks.cases import Bench, Metrics, imports, summary, time_calls

MESSAGE = bytes(64)


def roundtrip(bench: Bench) -> Metrics:
    """64 bytes there and back over a unix stream socket, two processes, blocking calls."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        here.close()
        while message := there.recv(4096):
            there.sendall(message)
        os._exit(0)
    there.close()

    def turn() -> None:
        here.sendall(MESSAGE)
        here.recv(4096)

    count = bench.repeats(20000, 3000)
    time_calls(turn, count // 10)
    taken = time_calls(turn, count)
    here.close()
    os.waitpid(child, 0)
    yield from summary("sync_", taken)


RAW: dict[str, Callable[[Bench], Metrics]] = {"roundtrip": roundtrip, "import": imports}
"""Cases with a floor."""
