"""What the data plane can use on this machine."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from . import cma

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def get_rdma_backend() -> str:
    """The way between two processes of this machine: "cma" (process_vm_readv, one copy) or "tcp".

    Between machines it is always "tcp". Which one a given buffer takes, and why, `RDMABuffer.explain()` tells.

    >>> get_rdma_backend() in ("cma", "tcp")
    True
    """
    return "cma" if _reads_memory() and _siblings_allowed() else "tcp"


def is_rdma_available() -> bool:
    """Whether `RDMABuffer` works here: always; no network card is needed.

    >>> is_rdma_available()
    True
    """
    return True


def is_ibverbs_available() -> bool:
    """Whether transfers go by InfiniBand verbs: no, Roost has no such way yet.

    >>> is_ibverbs_available()
    False
    """
    return False


@cache
def _reads_memory() -> bool:
    """Whether the kernel has the call and lets this process use it: seccomp may not."""
    source, target = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(1)
    there = (ctypes.c_ulong * 2)(ctypes.addressof(source), 1)
    here = (ctypes.c_ulong * 2)(ctypes.addressof(target), 1)
    return cma._readv(os.getpid(), ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0) == 1


def _siblings_allowed() -> bool:
    """Whether one process may read another that is not its child."""
    try:
        return YAMA.read_text().strip() == "0" or os.geteuid() == 0
    except FileNotFoundError:
        return True
