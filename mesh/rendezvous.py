"""Where the ranks of a torch.distributed job meet: addresses, a socket that is bound once and kept, the store on it.

No port is ever free between being chosen and being used: rank 0 binds port 0, keeps the listening socket, and the
store takes it over.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .procmesh import ProcMesh

IpKind = Literal["ipv4", "ipv6"]


def places(procs: ProcMesh) -> list[tuple[int, int, int, int]]:
    """For each rank of the mesh: (local rank, local size, host, hosts)."""
    refs = procs._members()
    hosts = list(dict.fromkeys(ref.node_id for ref in refs))
    sizes = {node: sum(ref.node_id == node for ref in refs) for node in hosts}
    seen: dict[str, int] = {}
    answer = []
    for ref in refs:
        local = seen.get(ref.node_id, 0)
        seen[ref.node_id] = local + 1
        answer.append((local, sizes[ref.node_id], hosts.index(ref.node_id), len(hosts)))
    return answer


def reachable(procs: ProcMesh) -> str:
    """The address at which the others reach rank 0."""
    refs = procs._members()
    if len({ref.node_id for ref in refs}) == 1:
        return "127.0.0.1"
    address = refs[0].agent_address
    return (
        address.removeprefix("tcp://").rpartition(":")[0].strip("[]") if address.startswith("tcp://") else refs[0].host
    )


def listen(host: str = "", port: int = 0) -> socket.socket:
    """A listening socket: on one address, or (the empty one) on all. Raises OSError, naming a port that is taken."""
    if host:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (97, 99):  # no IPv6 on this host after all
                raise
    return socket.create_server(("", port))


def store_on(listener: socket.socket, address: str, port: int, timeout: datetime.timedelta) -> Any:
    """torch's TCPStore as a server on a socket that listens; it owns the socket from now on."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        address,
        port,
        None,
        True,
        timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        multi_tenant=False,
    )


def own_address(use_ipaddr: IpKind | None) -> str:
    """How others may name this host: its name where that resolves to more than itself, else its address.

    Raises ValueError for another kind than "ipv4", "ipv6" or None.
    """
    if use_ipaddr not in (None, "ipv4", "ipv6"):
        raise ValueError(f'use_ipaddr={use_ipaddr!r}: there are "ipv4", "ipv6", and None for the name of the host')
    name = socket.gethostname()
    if use_ipaddr is None and _addresses(name, socket.AF_UNSPEC):
        return name
    family = socket.AF_INET6 if use_ipaddr == "ipv6" else socket.AF_INET
    return (_addresses(name, family) or [_outgoing(family)])[0]


def _addresses(name: str, family: int) -> list[str]:
    """What a name resolves to, without the loopback."""
    try:
        found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in found if not str(address[0]).startswith(("127.", "::1", "fe80"))]


def _outgoing(family: int) -> str:
    """The address of the interface of the default route; the loopback where there is none. Sends nothing."""
    far, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((far, 9))
        except OSError:
            return loopback
        return str(probe.getsockname()[0])


_told_gloo: list[bool] = []


def tell_gloo(address: str) -> None:
    """gloo listens at what the host's name resolves to, unless it is told an interface: where all ranks are on one
    host it is told the loopback, and not any more where they are not."""
    if address in ("127.0.0.1", "::1", "localhost"):
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            _told_gloo.append(True)
    elif _told_gloo:
        _told_gloo.clear()
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
