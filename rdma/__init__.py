"""One-sided reads and writes of tensors between processes.

`RDMABuffer(tensor)` is a small handle that any process of the job may read from and write to while its
owner's actors do something else. The way is chosen by what the two ends share: one process, one kernel
(process_vm_readv/writev), else TCP straight into the destination's memory; `RDMABuffer.explain()` says which.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .action import RDMAAction
    from .backends import get_rdma_backend, is_ibverbs_available, is_rdma_available
    from .buffer import RDMABuffer
    from .errors import CmaRefused, OwnerDied, RDMAError, StaleBuffer, TransferTimeout
    from .home import Home, set_home
    from .service import sending_to
    from .transfer import Moved, Transfer

_WHERE = {
    "CmaRefused": "errors",
    "Home": "home",
    "Moved": "transfer",
    "OwnerDied": "errors",
    "RDMAAction": "action",
    "RDMABuffer": "buffer",
    "RDMAError": "errors",
    "StaleBuffer": "errors",
    "Transfer": "transfer",
    "TransferTimeout": "errors",
    "get_rdma_backend": "backends",
    "is_ibverbs_available": "backends",
    "is_rdma_available": "backends",
    "sending_to": "service",
    "set_home": "home",
}

__all__ = [
    "CmaRefused",
    "Home",
    "Moved",
    "OwnerDied",
    "RDMAAction",
    "RDMABuffer",
    "RDMAError",
    "StaleBuffer",
    "Transfer",
    "TransferTimeout",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
    "sending_to",
    "set_home",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
