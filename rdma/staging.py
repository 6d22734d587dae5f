"""Accelerator memory, by way of the host.

The owner's data server copies a piece to or from the device on its own thread, after synchronising the
device, so that the owner's user code takes no part here either. Between processes that share a GPU, CUDA and
HIP IPC handles belong in `peer.choose`, as a backend before TCP, since then nothing needs to leave the
device.
"""

from __future__ import annotations

import logging
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from .memory import Memory, Span, describe

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_log = logging.getLogger(__name__)


def is_host(span: Span) -> bool:
    return span.device == "cpu"


@lru_cache(maxsize=64)
def say_staged(device: str) -> None:
    """Log once a process and device that its transfers pass through host memory."""
    _log.info("transfers of %s tensors are staged through host memory", device)


def _torch() -> ModuleType:
    return sys.modules["torch"]  # a device tensor exists, so it is loaded


def _bytes_of(span: Span) -> torch.Tensor:
    flat: torch.Tensor = _torch().empty(0, dtype=_torch().uint8, device=span.device).set_(span.keep)
    return flat


def host_view(span: Span, offset: int, n: int) -> memoryview:
    """A host copy of a piece of a device's storage block."""
    _synchronize(span.device)
    return _bytes_of(span)[offset : offset + n].cpu().numpy().data


def put_back(span: Span, offset: int, data: bytearray) -> None:
    """Write a piece into a device's storage block, and wait until it is there."""
    _bytes_of(span)[offset : offset + len(data)].copy_(_torch().frombuffer(data, dtype=_torch().uint8))
    _synchronize(span.device)


def host_copy(memory: Memory, *, fill: bool) -> tuple[Memory, torch.Tensor]:
    """A packed host twin of a device tensor, pinned where possible; with its values if `fill`."""
    say_staged(memory.device)
    tensor = cast("torch.Tensor", memory.keep)
    twin = _torch().empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    if fill:
        twin.copy_(tensor)
    return describe(twin), twin


def fill_device(memory: Memory, twin: torch.Tensor) -> None:
    """Give a device tensor its twin's values, and wait until it has them."""
    cast("torch.Tensor", memory.keep).detach().copy_(twin)
    _synchronize(memory.device)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        _torch().cuda.synchronize(device)
