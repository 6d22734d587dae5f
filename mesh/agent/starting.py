"""Starting a host agent as a child of this process, and hearing where it listens."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import msgpack

from ...actors.errors import RoostError
from ...actors.link.address import Address, connect_unix, parse
from ...actors.link.gate import Gate

START_TIMEOUT = 60.0  # seconds for an agent to say where it listens, while it lives
RUN_DIR = "ROOST_RUN_DIR"  # where run directories are made; default: the user's runtime folder, else the temp folder


def make_run_dir() -> str:
    """A new folder for sockets and logs, readable by this user only."""
    base = os.environ.get(RUN_DIR) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if not os.path.isdir(base) or not os.access(base, os.W_OK):
        base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="roost-", dir=base)


def remove_stale(path: str) -> None:
    """Remove the socket of a loop that was killed; one that somebody listens at stays."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            connect_unix(probe, path)
        except ConnectionRefusedError:
            os.unlink(path)
        except FileNotFoundError:
            return


def listen_at(gate: Gate, wanted: str, ready: int) -> Address:
    """Listen where the user wants it. Where that cannot be, whoever has started the agent is told, and it ends."""
    try:
        address = parse(wanted)
        if address.scheme == "unix":
            remove_stale(address.path)
        return gate.listen(address)
    except OSError as error:
        os.write(ready, msgpack.packb({"error": f"cannot listen at {wanted}: {error.strerror}; take another address"}))
        raise SystemExit(1) from None


def advertised_as(wanted: str | None, bound: str) -> str:
    """The address that others are told: as the user wrote it, with the port that was bound.

    >>> advertised_as("tcp://node7:0", "tcp://10.0.0.7:4000")
    'tcp://node7:4000'
    """
    if wanted is None:
        return bound
    address = parse(wanted)
    return str(replace(address, port=address.port or parse(bound).port))


def start_agent(config: bytes) -> subprocess.Popen[bytes]:
    """Start an agent; it ends with the thread that calls this, because a death signal follows the parent's thread."""
    process = subprocess.Popen(
        [sys.executable, "-m", "roost.mesh.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(config)
    process.stdin.close()
    return process


def read_ready(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a new agent says of itself. Raises RoostError when it does not come up."""
    assert process.stdout is not None
    data = b""
    until = time.monotonic() + START_TIMEOUT
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(until - time.monotonic(), 0))
        if not ready:
            raise RoostError(f"the host agent did not say where it listens within {START_TIMEOUT:g} s")
        chunk = os.read(process.stdout.fileno(), 65536)
        if not chunk:
            break
        data += chunk
    process.stdout.close()
    if not data:
        raise RoostError(
            f"the host agent ended at its start with exit code {process.wait()}; what it said stands above"
        )
    answer: dict[str, Any] = msgpack.unpackb(data)
    if "error" in answer:
        process.wait()
        raise RoostError(answer["error"])
    return answer
