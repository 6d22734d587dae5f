"""Hosts that are started elsewhere, by Monarch's names: workers that listen, and programs that attach to them.

Roost trusts no connection blindly, whatever `ca` says: both ends hold the secret in `$ROOST_SECRET_FILE`, by default
`~/.roost/secret`, which is made at first use; hosts with a common home folder share it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...actors.future import Future
from ...mesh import attaching, hostloop
from ...mesh.hostmesh import HostMesh
from .later import NotOffered

TRUST_ALL = "trust_all_connections"
Key = bytes | Path | None
Authority = bytes | Path | str


def _check(private_key: Key, ca: Authority) -> None:
    if ca != TRUST_ALL or private_key is not None:
        raise NotImplementedError(
            f"TLS security plumbing is not offered: pass ca={TRUST_ALL!r} and no private_key. Connections are "
            "authenticated by the secret in $ROOST_SECRET_FILE or ~/.roost/secret"
        )


def native_address(address: str) -> str:
    """Monarch's address as Roost writes it.

    >>> native_address("service<8>@tcp://node7:4000"), native_address("ipc:///run/w.sock")
    ('tcp://node7:4000', 'unix:///run/w.sock')
    >>> native_address("tcp://node7:4000@tcp://10.0.0.7:4000")
    'tcp://node7:4000@tcp://10.0.0.7:4000'
    """
    name, mark, rest = address.partition("@")
    if mark and "://" not in name:
        address = rest
    return address.replace("ipc://", "unix://")


def run_worker_loop_forever(*, private_key: Key = None, ca: Authority, address: str) -> None:
    """Make this process a host that programs attach to. Ends the process after a program's `HostMesh.shutdown()`.

    NotImplementedError for any `ca` but "trust_all_connections".
    """
    _check(private_key, ca)
    hostloop.run_worker_loop_forever(native_address(address), on_ready=_say_nothing)


def run_worker_loop_until_shutdown(*, private_key: Key = None, ca: Authority, address: str) -> None:
    """The same, but returns after a program's `HostMesh.shutdown()`."""
    _check(private_key, ca)
    hostloop.run_worker_loop_until_shutdown(native_address(address), on_ready=_say_nothing)


def start_worker_loop_forever(*, private_key: Key = None, ca: Authority, address: str) -> Future[None]:
    """The same beside what this process does otherwise; the future is done when the loop has ended."""
    _check(private_key, ca)
    return hostloop.start_worker_loop_forever(native_address(address), on_ready=_say_nothing)


def _say_nothing(address: str) -> None:
    """Monarch's loops do not print where they listen."""


def attach_to_workers(
    *, private_key: Key = None, ca: Authority, workers: Sequence[str | Future[str]], name: str | None = None
) -> HostMesh:
    """A mesh, in the dimension `hosts`, of the hosts whose worker loops listen at these addresses.

    NotImplementedError for any `ca` but "trust_all_connections".
    """
    _check(private_key, ca)
    addresses = [native_address(worker) if isinstance(worker, str) else worker for worker in workers]
    return attaching.attach_to_workers(addresses, name=name)


def attach(addr: str) -> None:
    """Make this program reachable through a gateway; it links to hosts directly instead."""
    raise NotOffered(
        f"attach({addr!r}): there are no gateways. Run worker loops on the hosts and attach_to_workers() to them"
    )
