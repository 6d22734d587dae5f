"""Programs written for torchrun on the processes of a mesh: their variables, their store, and the scripts themselves.

`setup_torch_elastic_env(procs)` sets what torchrun sets, after which `init_process_group("gloo")` works in any actor;
`SPMDActor` runs a whole script. Rank 0's process serves the store that the scripts meet at, on a socket that it bound
before the others were told of the port; TORCHELASTIC_USE_AGENT_STORE makes torch use it instead of binding the port
itself.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ..actors.actor import Actor
from ..actors.context import context
from ..actors.endpoint import endpoint
from ..actors.returns_future import returns_future
from .procmesh import ProcMesh
from .rendezvous import IpKind, listen, own_address, places, reachable, store_on, tell_gloo

TIMEOUT = 300.0  # seconds for all ranks to be set up
_LOCAL = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

_listeners: dict[int, socket.socket] = {}  # by port: bound for a store that is not there yet; one at a time
_stores: OrderedDict[int, Any] = OrderedDict()  # by port: served here; groups may still use those of earlier set-ups
KEPT_STORES = 8
_born: dict[str, int] = {}  # this process's place, as it was spawned


def _remember_place() -> None:
    if not _born:
        _born.update({name: int(os.environ[name]) for name in _LOCAL if os.environ.get(name, "").isdigit()})


class SPMDActor(Actor):
    """Runs scripts written for torchrun, one process a rank, in the processes of a mesh.

    >>> spmd = procs.spawn("spmd", SPMDActor)                                         # doctest: +SKIP
    >>> address, port = spmd.slice(gpus=0).get_host_port.call_one(None).get()         # doctest: +SKIP
    >>> spmd.main.call(address, port, ["train.py", "--lr", "0.1"]).get()              # doctest: +SKIP
    """

    def __init__(self) -> None:
        _remember_place()

    @endpoint
    def get_host_port(self, use_ipaddr: IpKind | None = None, host: str | None = None) -> tuple[str, int]:
        """On rank 0: bind a port, keep it, and say where it is: the host's name or, asked for, its "ipv4" or "ipv6".

        `host` binds that address alone. The port is held until this process is set up as rank 0.
        """
        address = host or own_address(use_ipaddr)
        listener = listen(host or (address if use_ipaddr else ""))
        while _listeners:
            _listeners.popitem()[1].close()
        port = int(listener.getsockname()[1])
        _listeners[port] = listener
        return address, port

    @endpoint
    def setup_env(self, addr: str, port: int, where: Sequence[tuple[int, int, int, int]] | None = None) -> None:
        """Set the variables of torchrun for this rank of the mesh, or slice, that is called; rank 0 serves the store.

        `where` holds (local rank, local size, host, hosts) by rank. Without it a process keeps the place on its host
        that it was spawned with; in a slice of its mesh the last dimension counts as the host's.
        """
        point = context().message_rank
        rank, size = point.rank, point.size()
        local, local_size, host, hosts = where[rank] if where is not None else _place(rank, size, point)
        os.environ.update({
            "MASTER_ADDR": addr, "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(hosts),
            "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(size), "ROLE_NAME": "rank",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        })  # fmt: skip
        tell_gloo(addr)
        if rank == 0:
            _serve_store(addr, port)

    @endpoint
    def main(self, addr: str, port: int, script_args: Sequence[str]) -> bool:
        """Set up this rank, then run `["script.py", "--flag", ...]` or `["-m", "module", ...]` as `python` would, in
        this process; True at its end. Ask `get_host_port` anew for each run: a store knows its first group.

        `sys.argv` and `sys.path` are put back after it, and a default process group that it left is destroyed.
        Raises what the script raises; RuntimeError when it exits with a code that is not 0.
        """
        if not script_args or list(script_args) == ["-m"]:
            raise ValueError(f"script_args={list(script_args)!r}: a script, or -m and a module, with its arguments")
        self.setup_env(addr, port)
        try:
            run_script(list(script_args))
        finally:
            _leave_group()
        return True


def _place(rank: int, size: int, point: Any) -> tuple[int, int, int, int]:
    """(local rank, local size, host, hosts) of a rank that nobody has told its place."""
    if len(_born) == len(_LOCAL) and _born["WORLD_SIZE"] == size:
        local_size = _born["LOCAL_WORLD_SIZE"]
        return _born["LOCAL_RANK"], local_size, _born["GROUP_RANK"], size // local_size
    last = list(point)[-1] if len(point) else None
    local_size = point.size(last) if last is not None else 1
    return rank % local_size, local_size, rank // local_size, size // local_size


def _serve_store(addr: str, port: int) -> None:
    """Serve the store on the socket that is held, or on the port that was asked for; where there is no torch to use
    it, let the port go."""
    listener = _listeners.pop(port, None)
    if importlib.util.find_spec("torch") is None:
        if listener is not None:
            listener.close()
        return
    if listener is None:
        if port in _stores:
            return
        listener = listen("", port)
    _stores[port] = store_on(listener, addr, port, datetime.timedelta(seconds=TIMEOUT))
    while len(_stores) > KEPT_STORES:
        _stores.popitem(last=False)


def run_script(script_args: list[str]) -> None:
    """Run a script, or `-m module`, as `__main__` in this process, with its arguments in `sys.argv`.

    Raises what it raises; RuntimeError when it exits with a code that is not 0.
    """
    import runpy  # 8 ms that other processes need not spend

    module = script_args[0] == "-m"
    name, *args = script_args[1:] if module else script_args
    first = os.getcwd() if module else os.path.dirname(os.path.abspath(name))
    with _as_program([name, *args], first):
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise RuntimeError(f"{name} left with exit code {leaving.code!r}") from None


@contextmanager
def _as_program(argv: list[str], path: str) -> Iterator[None]:
    before, main, entries = sys.argv, sys.modules.get("__main__"), list(sys.path)
    sys.argv = argv
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.argv = before
        sys.path[:] = entries
        if main is not None:
            sys.modules["__main__"] = main
        sys.stdout.flush()
        sys.stderr.flush()


def _leave_group() -> None:
    """A group that a script has left would be in the way of the next one."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@returns_future
async def _set_up(procs: ProcMesh, master_addr: str | None, master_port: int | None, use_ipaddr: IpKind | None) -> None:
    actors = cast(Any, procs.spawn("spmd_setup", SPMDActor)).flatten("rank")
    try:
        address, port = master_addr, master_port
        if port is None or (address is None and use_ipaddr is not None):
            one_host = reachable(procs) if address is None and use_ipaddr is None else None
            found, bound = await actors.slice(rank=0).get_host_port.call_one(use_ipaddr, one_host)
            address, port = address or found, port if port is not None else bound
        await actors.setup_env.call(address or reachable(procs), port, places(procs))
    finally:
        await actors.stop()  # the main thread is the user's actor's again; the store stays


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: IpKind | None = None,
) -> None:
    """Set the variables of torchrun in all processes of a mesh, ranks in its order, and serve the store they name.

    MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (among this mesh's processes on that
    host), GROUP_RANK, GROUP_WORLD_SIZE (hosts), ROLE_RANK, ROLE_WORLD_SIZE, ROLE_NAME. Then
    `torch.distributed.init_process_group("gloo")` in any actor there joins, without arguments. Call it again before
    another group is made of the same processes.

    Args:
        master_addr: what rank 0's host is called by the others; None finds an address that they reach.
        master_port: a port of rank 0's host; None lets rank 0 bind a free one, which nobody else can take.
        use_ipaddr: "ipv4" or "ipv6", where the host's name means nothing to the others.

    Raises OSError for a port that is taken, ActorDied, CallTimeout after 300 s. In a coroutine await
    `setup_torch_elastic_env_async`.

    >>> setup_torch_elastic_env(procs)                                # doctest: +SKIP
    """
    _set_up(proc_mesh, master_addr, master_port, use_ipaddr).get(TIMEOUT)


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: IpKind | None = None,
) -> None:
    """`setup_torch_elastic_env` for coroutines.

    >>> await setup_torch_elastic_env_async(procs)                    # doctest: +SKIP
    """
    await _set_up(proc_mesh, master_addr, master_port, use_ipaddr)
