"""Actors that tests spawn on worker loops, and the scripts of loops and of programs that attach to them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from roost.actors import Actor, endpoint
from roost.actors.node import current_node
from roost.mesh import ActorMesh, HostMesh, get_or_spawn_controller

LOOP = """
import sys
from roost.mesh import run_worker_loop_forever
run_worker_loop_forever(sys.argv[1], on_ready=print)
"""

LOOP_UNTIL_SHUTDOWN = """
import sys
from roost.mesh import run_worker_loop_until_shutdown
run_worker_loop_until_shutdown(sys.argv[1], on_ready=print)
print("returned")
"""

PROGRAM = """
import sys
from guests import Guest
from roost.mesh import attach_to_workers
hosts = attach_to_workers(sys.argv[1:], timeout=20)
procs = hosts.spawn_procs({"gpus": 2})
guests = procs.spawn("guest", Guest)
print(*guests.pid.call().get(timeout=20).values())
"""
"""Attaches, spawns two processes a host, prints their pids and ends."""


class Guest(Actor):
    """Counts, and calls others."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @endpoint
    def ask(self, other: ActorMesh) -> list[int]:
        """What `add` of another mesh answers."""
        return other.add.call().get(timeout=20).values()

    @endpoint
    def lodge(self, hosts: HostMesh) -> list[int]:
        """Spawn a process on each host; gives their pids."""
        return hosts.spawn_procs().spawn("lodger", Guest).pid.call().get(timeout=20).values()

    @endpoint
    def die(self) -> None:
        os._exit(7)

    @endpoint
    def registry(self, name: str, start: int) -> tuple[int, int]:
        """The program's controller of that name: its pid and how often it was asked."""
        found = get_or_spawn_controller(name, Guest, start).get(timeout=20)
        return found.pid.call_one().get(timeout=20), found.add.call_one().get(timeout=20)


class Fountain(Actor, lanes={"side": 1}):
    """Streams without end."""

    @endpoint
    def numbers(self) -> Iterator[int]:
        yield from range(10**9)

    @endpoint
    async def async_numbers(self) -> AsyncIterator[int]:
        for number in range(10**9):
            yield number

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint(lane="side")
    def unacknowledged(self, asker: int) -> int:
        """Frames that other processes than the one that asks, and the agent, have not acknowledged."""
        node = current_node()
        assert node is not None
        others = [peer for peer in list(node.peers.values()) if peer.proc_id not in (asker, node.routing.parent)]
        return sum(peer.outbox.kept for peer in others)


def settle(fountain: ActorMesh, timeout: float) -> None:
    """Wait until nothing that a fountain has sent is on its way: what a reader's death then does is not found out by
    sending."""
    node = current_node()
    assert node is not None
    until = time.monotonic() + timeout
    while fountain.unacknowledged.call_one(node.proc_id).get(timeout=timeout):
        assert time.monotonic() < until


class Drinker(Actor):
    """Opens a stream and takes one item of it."""

    @endpoint
    def open(self, fountain: ActorMesh, way: str) -> int:
        self.stream = getattr(fountain, way).options(window=3).stream()
        next(self.stream)
        return os.getpid()


class Stubborn(Actor):
    """Its `__init__` raises until there is a file."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            raise ValueError("not yet")

    @endpoint
    def here(self) -> bool:
        return True


class Wire:
    """A tcp connection's way to a listener that a test can cut, for a while or for good."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target: tuple[str, int] | None = None
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self._open = True
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lead_to(self, port: int) -> None:
        """Pass connections on to this port of the machine."""
        self._target = ("127.0.0.1", port)

    def _start(self, run: Any, *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._open or self._target is None:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._ends += [near, far]
            self._start(self._pump, near, far)
            self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut(self, *, for_good: bool = False) -> None:
        """Break every connection; new ones are let through again unless it is for good."""
        with self._lock:
            self._open = not for_good
            for end in self._ends:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
                finally:
                    end.close()
            self._ends.clear()

    def close(self) -> None:
        """Let go of everything."""
        self.cut(for_good=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        until = time.monotonic() + 10
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
