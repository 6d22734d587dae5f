"""`monarch.rdma`: Roost's buffers under Monarch's rule of what fits: bytes, whatever their type, into as many or more.

Any shape of any type is taken, not one-dimensional tensors alone; what is read from or into must be contiguous.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Self

from ... import rdma as native
from ...rdma.action import _write_head as write_head
from ...rdma.buffer import _arrived as _arrived_native
from ...rdma.memory import describe
from ...rdma.transfer import Transfer

TIMEOUT = 60.0  # seconds a transfer may take


class RDMAReadTransferWarning(Warning):
    """Never given here; for programs that filter it."""


class RDMAWriteTransferWarning(Warning):
    """Never given here; for programs that filter it."""


class RDMATcpFallbackWarning(Warning):
    """Never given here: on one host memory is read directly, and tcp goes straight into it."""


def _bytes_of(data: Any, what: str) -> Any:
    """A flat view of the bytes of a tensor, array or buffer; ValueError when it is not contiguous."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(data, torch.Tensor):
        if data.is_contiguous():
            return data.detach().reshape(-1).view(torch.uint8)
    elif numpy is not None and isinstance(data, numpy.ndarray):
        if data.flags.c_contiguous:
            return data.reshape(-1).view(numpy.uint8)
    elif (view := memoryview(data)).c_contiguous:
        return view.cast("B")
    raise ValueError(f"the {what} must be contiguous in memory")


def room_for(buffer: native.RDMABuffer, dst: object) -> Any:
    """The first bytes of a destination, as many as the buffer has; ValueError when there are fewer."""
    room, size = _bytes_of(dst, "destination"), buffer.size()
    if len(room) < size:
        raise ValueError(f"destination local memory size ({len(room)}) must be >= remote buffer size ({size})")
    return room[:size]


def load_for(buffer: native.RDMABuffer, src: object) -> Any:
    """The bytes of a source; ValueError when the buffer has fewer."""
    data, size = _bytes_of(src, "source"), buffer.size()
    if len(data) > size:
        raise ValueError(f"source local memory size ({len(data)}) must be <= remote buffer size ({size})")
    return data


class RDMABuffer(native.RDMABuffer):
    """Opens memory to one-sided reads and writes; the handle is sent through endpoints.

    `read_into` copies all of it into the first bytes of a destination that is as large or larger, `write_from` a
    source that is as large or smaller into its first bytes. ValueError where sizes do not fit.
    """

    __slots__ = ()

    def __init__(self, data: object) -> None:
        if describe(data).layout.nbytes == 0:
            raise ValueError("Cannot create RDMABuffer with size 0.")
        super().__init__(data)

    @property
    def backend(self) -> str:
        """How it is reached from here: "local", "cma" or "tcp"."""
        return self.explain().partition(":")[0]

    def read_into(self, dst: object, *, timeout: float | None = TIMEOUT) -> Transfer:
        """Copy the buffer into the first bytes of `dst`; ValueError when that is smaller."""
        return super().read_into(room_for(self, dst), timeout=timeout)

    def write_from(self, src: object, *, timeout: float | None = TIMEOUT) -> Transfer:
        """Copy `src` into the first bytes of the buffer; ValueError when that is smaller."""
        data = load_for(self, src)
        if len(data) == self.size():
            return super().write_from(data, timeout=timeout)
        return write_head(self, data, timeout)

    def __reduce__(self) -> Any:
        _, (packed,) = super().__reduce__()
        return _arrived, (packed,)


def _arrived(packed: bytes) -> RDMABuffer:
    """A handle off the wire."""
    buffer: Any = _arrived_native(packed)
    buffer.__class__ = RDMABuffer
    found: RDMABuffer = buffer
    return found


class RDMAAction(native.RDMAAction):
    """Reads and writes that go together: `RDMAAction().read_remote(dst, buffer).submit()`, as often as wanted.

    Sizes are checked when an operation is added, by the rule of RDMABuffer.
    """

    def read_remote(self, dst: object, src: native.RDMABuffer) -> Self:
        """Add a read of a buffer into the first bytes of `dst`; ValueError when that is smaller."""
        return super().read_remote(room_for(src, dst), src)

    def write_remote(self, dst: native.RDMABuffer, src: object) -> Self:
        """Add a write of `src` into the first bytes of a buffer; ValueError when that is smaller."""
        return super().write_remote(dst, load_for(dst, src))


def get_rdma_backend() -> str:
    """ "tcp": what Monarch calls every way that is not an RDMA network."""
    return "tcp"


def is_ibverbs_available() -> bool:
    """Whether transfers go over an RDMA network; not yet."""
    return False


def is_rdma_available() -> bool:
    """The same, by its older name."""
    warnings.warn("is_rdma_available is deprecated: use is_ibverbs_available", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()


def pt_cuda_allocator_compatibility() -> bool:
    """Whether torch's CUDA allocator suits: any does."""
    return True
