"""Collectives: torch.distributed over any mesh or slice, set up by one call from the controller.

`init_process_group(procs)` makes the default group of each process, in one round: rank 0 binds a port of the system's
choice and keeps the socket, all ranks are told where, the store takes the socket over (no port is ever free between
being chosen and being used). The variables that torchrun sets stand too, so unmodified `env://` scripts join the same
store. gloo between CPUs; NCCL, which is RCCL on ROCm under the same name, where every rank holds a device of its own.

`abort_process_group(procs)` ends a collective that hangs, with an exception on every member while the actors live
on: gloo's own abort does nothing until a peer exits, so the group's connected sockets, recorded when it was made, are
shut down; never a listening one, which would end the process.
"""

from __future__ import annotations

import datetime
import os
import socket
import stat
import sys
from typing import Any, cast

from ..actors.actor import Actor
from ..actors.context import context
from ..actors.endpoint import endpoint
from ..mesh.gather import all_of
from ..mesh.procmesh import ProcMesh
from ..mesh.rendezvous import listen, places, reachable, store_on, tell_gloo

TIMEOUT = 300.0  # seconds a collective may take, unless the caller says otherwise


class ProcessGroups(Actor):
    """One on each process of a mesh: makes, ends and aborts that process's default group."""

    def __init__(self) -> None:
        self.listener: socket.socket | None = None
        self.sockets: set[int] = set()
        self.store: Any = None

    @endpoint
    def listen(self, host: str) -> tuple[str, int]:
        """On rank 0: bind a port and keep it; gives (address, port)."""
        self.listener = listen(host)
        address = self.listener.getsockname()
        return str(address[0]), int(address[1])

    @endpoint
    def join(
        self, address: str, port: int, backend: str | None, timeout: float, ranks: list[tuple[int, int, int, int]]
    ) -> str:
        """Join the group; gives the backend. `ranks` holds (local rank, local size, host, hosts) by rank."""
        import torch.distributed as dist

        rank = context().message_rank.rank
        local_rank, local_size, host, _ = ranks[rank]
        if dist.is_initialized():
            self._leave()
        os.environ.update({
            "MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(len(ranks)),
            "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_size), "GROUP_RANK": str(host),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        })  # fmt: skip
        tell_gloo(address)
        limit = datetime.timedelta(seconds=timeout)
        before = connected_sockets()
        self.store = self._store(address, port, rank, limit)
        chosen = backend or choose_backend(local_rank, local_size)
        if chosen == "nccl":
            import torch

            torch.cuda.set_device(local_rank)
        dist.init_process_group(chosen, store=self.store, rank=rank, world_size=len(ranks), timeout=limit)
        if chosen == "gloo":
            dist.barrier()  # gloo connects its pairs with the first collective
        self.sockets = {number for number in connected_sockets() - before if not is_store(number, port)}
        return chosen

    def _store(self, address: str, port: int, rank: int, timeout: datetime.timedelta) -> Any:
        if rank == 0:
            assert self.listener is not None
            listener, self.listener = self.listener, None
            return store_on(listener, address, port, timeout)
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(address, port, None, False, timeout, wait_for_workers=False)

    @endpoint
    def leave(self) -> None:
        """End the group, if there is one."""
        self._leave()

    def _leave(self) -> None:
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized():
            dist.destroy_process_group()
        self.sockets.clear()
        self.store = None

    @endpoint
    def abort(self) -> int:
        """Make a collective that hangs raise; gives the number of connections that were cut."""
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.group.WORLD._get_backend(__import__("torch").device("cuda")).abort()  # type: ignore[union-attr]
            return 0
        cut = 0
        for number in self.sockets & connected_sockets():
            duplicate = socket.socket(fileno=os.dup(number))
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
                cut += 1
            except OSError:
                continue
            finally:
                duplicate.close()
        return cut


def choose_backend(local_rank: int, local_size: int) -> str:
    """NCCL (RCCL) where every rank of this host has a device of its own, else gloo."""
    import torch

    if torch.cuda.is_available() and torch.distributed.is_nccl_available() and local_size <= torch.cuda.device_count():
        return "nccl"
    return "gloo"


def connected_sockets() -> set[int]:
    """The descriptors of this process's connected tcp sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as duplicate:
                if duplicate.family in (socket.AF_INET, socket.AF_INET6):
                    duplicate.getpeername()
                    found.add(number)
        except OSError:  # closed meanwhile, or listening: no peer
            continue
    return found


def is_store(number: int, port: int) -> bool:
    """Whether a connection is one to or from the group's store, which outlives an abort."""
    try:
        with socket.socket(fileno=os.dup(number)) as duplicate:
            return port in (duplicate.getpeername()[1], duplicate.getsockname()[1])
    except OSError:
        return True


def _actors(procs: ProcMesh) -> Any:
    """The actors that keep a mesh's groups; spawned once a set of processes."""
    kept = procs._processes.services
    key = ("process groups", procs._shape.ranks())
    if key not in kept:
        kept[key] = cast(Any, procs.spawn("process_groups", ProcessGroups)).flatten("rank")
    return kept[key]


def init_process_group(procs: ProcMesh, backend: str | None = None, *, timeout: float = TIMEOUT) -> str:
    """Make torch.distributed's default group of the processes of a mesh or slice, ranks in mesh order.

    Call it from the controller (or any actor that owns the mesh); the endpoints of actors on these processes then use
    `torch.distributed` as ever. A group that is there already is ended first, so that the same call rebuilds one after
    a failure.

    Args:
        backend: "gloo" or "nccl"; None chooses NCCL (RCCL) where every rank has a device of its own, else gloo.
        timeout: seconds a collective may take.

    Returns the backend. Raises what a rank raised, ActorDied, or CallTimeout when they do not all join in time.

    >>> init_process_group(procs)                                     # doctest: +SKIP
    'gloo'
    """
    groups = _actors(procs)
    address, port = groups.slice(rank=0).listen.call_one(reachable(procs)).get(timeout)
    return str(groups.join.call(address, port, backend, timeout, places(procs)).get(timeout).get(0))


def destroy_process_group(procs: ProcMesh) -> None:
    """End the group that `init_process_group` made on these processes."""
    _actors(procs).leave.call().get(30)


def abort_process_group(procs: ProcMesh, *, timeout: float = 30.0) -> None:
    """Make a collective that hangs raise on every member; the actors live on. Then `init_process_group` anew.

    What it raises there is gloo's or NCCL's own RuntimeError: a connection was closed by its peer. Members whose
    process is gone are passed over.
    """
    groups = _actors(procs)
    futures = [groups.slice(rank=rank).abort.call_one() for rank in range(len(groups))]
    all_of(futures, ignore=(Exception,)).get(timeout)
