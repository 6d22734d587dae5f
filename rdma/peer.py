"""By which way the memory of another process is reached, and why."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from . import cma
from .errors import CmaRefused
from .identity import Identity, me

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """A backend, "local", "cma" or "tcp", and the sentence that says why this one."""

    backend: str
    why: str


def choose(owner: Identity, reader: Identity, device: str) -> Way:
    """The way from `reader` to memory of `owner`, as far as their identities tell.

    CUDA and HIP IPC between processes that share a device belong here, before TCP; NIXL between nodes, too.
    """
    if device != "cpu":
        return Way("tcp", f"the buffer is on {device}: its owner's data server stages it through host memory")
    if owner.same_process(reader):
        return Way("local", "the buffer belongs to this process")
    if owner.node_id != reader.node_id:
        return Way("tcp", f"the owner is on node {owner.node_id}, the reader on {reader.node_id}")
    if not owner.same_kernel(reader):
        return Way("tcp", "the two processes are in different pid namespaces, so a pid does not name the owner here")
    return Way("cma", f"both processes are on node {owner.node_id}, under one kernel")


_asked: dict[Identity, str | None] = {}  # why the kernel refuses, or None where it does not


def way_to(owner: Identity, device: str, cell: int, cookie: bytes) -> Way:
    """The way from this process, after asking the kernel once for each owner (a read of one guard cell).

    Raises what the look at the cell finds: OwnerDied, StaleBuffer.
    """
    way = known(owner, device)
    if way is None:
        way = choose(owner, me(), device)
        try:
            cma.check(owner, cell, cookie)
            _asked[owner] = None
        except CmaRefused as error:
            return refuse(owner, str(error))
    return way


def known(owner: Identity, device: str) -> Way | None:
    """What `way_to` would say, where the kernel need not be asked for it any more."""
    way = choose(owner, me(), device)
    if way.backend != "cma":
        return way
    if owner not in _asked:
        return None
    why = _asked[owner]
    return way if why is None else Way("tcp", why)


def refuse(owner: Identity, why: str) -> Way:
    """Remember that the kernel does not let us at that process's memory; TCP is used from now on."""
    if _asked.get(owner) is None:
        _log.warning("%s; its buffers go over TCP instead", why)
        _asked[owner] = why
    return Way("tcp", why)


os.register_at_fork(after_in_child=_asked.clear)
