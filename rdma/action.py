"""RDMAAction: several one-sided reads and writes, built once and submitted together, as often as wanted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from ..actors.future import Future
from .buffer import RDMABuffer
from .errors import RDMAError
from .layout import Layout, matched, packed
from .memory import Memory, describe
from .moves import carry_out
from .transfer import Transfer

TIMEOUT = 60.0  # seconds an operation may take, unless the caller says otherwise


@dataclass(frozen=True, slots=True)
class _Operation:
    """One read or write; `begin(timeout)` starts it."""

    what: str
    begin: Callable[[float | None], Transfer]


class _Submitted(Future[None]):
    """Done when all operations are, or have failed; fails with the first of those that did, by order."""

    __slots__ = ("_errors", "_left", "_operations", "_tally")

    def __init__(self, operations: tuple[_Operation, ...]) -> None:
        super().__init__()
        self._operations = operations
        self._left = len(operations)
        self._errors: dict[int, Exception] = {}
        self._tally = threading.Lock()

    def _about(self) -> str:
        return f"{len(self._operations)} one-sided operations"

    def ended(self, index: int, error: Exception | None) -> None:
        """One of them has ended."""
        with self._tally:
            self._left -= 1
            if error is not None:
                self._errors[index] = error
            if self._left:
                return
        if not self._errors:
            self.set_result(None)
            return
        first = min(self._errors)
        error = self._errors[first]
        more = f" ({len(self._errors) - 1} more failed)" if len(self._errors) > 1 else ""
        kind = type(error) if isinstance(error, RDMAError) else RDMAError
        told = kind(f"operation {first + 1} of {len(self._operations)}, {self._operations[first].what}: {error}{more}")
        told.__cause__ = error
        self.set_exception(told)


class RDMAAction:
    """Reads and writes that go together. Build it once, `submit` it as often as wanted: the memory is looked at anew.

    Each operation is checked when it is added: the two ends match as for `RDMABuffer.read_into` and `write_from`, or
    both are contiguous and the source has no more bytes than the destination, whose first bytes are then written.
    Operations of one submit run at the same time, in no order; do not let one write what another reads.

    >>> action = RDMAAction().read_remote(here, remote).write_remote(other, there)     # doctest: +SKIP
    >>> action.submit(timeout=10).get()                                                # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._operations: list[_Operation] = []

    def __len__(self) -> int:
        return len(self._operations)

    def __repr__(self) -> str:
        return f"<RDMAAction: {'; '.join(operation.what for operation in self._operations) or 'no operations'}>"

    def read_remote(self, dst: object, src_buf: RDMABuffer) -> Self:
        """Add a read of `src_buf` into `dst`. Raises ValueError when `dst` is too small, or read-only."""
        memory, layout = describe(dst), src_buf._handle.layout
        if not memory.writable:
            raise ValueError(f"the destination {memory.layout} is read-only")
        near = dst if _match(layout, memory.layout) else _first_bytes(dst, memory, layout, memory.layout)
        what = f"read_remote of {src_buf!r}"
        self._operations.append(_Operation(what, lambda timeout: src_buf.read_into(near, timeout=timeout)))
        return self

    def write_remote(self, dst_buf: RDMABuffer, src: object) -> Self:
        """Add a write of `src` into `dst_buf`. Raises ValueError when `dst_buf` is too small, or read-only."""
        memory, layout = describe(src), dst_buf._handle.layout
        if not dst_buf._handle.writable:
            raise ValueError(f"the buffer {layout} was made of read-only memory")
        what = f"write_remote to {dst_buf!r}"
        if _match(memory.layout, layout):
            self._operations.append(_Operation(what, lambda timeout: dst_buf.write_from(src, timeout=timeout)))
            return self
        near = _first_bytes(src, memory, memory.layout, layout)
        self._operations.append(_Operation(what, lambda timeout: _write_head(dst_buf, near, timeout)))
        return self

    def submit(self, *, timeout: float | None = TIMEOUT) -> Future[None]:
        """Start all operations; the future is done when all of them are.

        Each may take `timeout` seconds. Where some fail, the future fails with the error of the first of them, which
        names the operation, once the others have ended too; what the failed ones were to write is undefined.
        Cancelling the future does not stop what has begun.
        """
        submitted = _Submitted(tuple(self._operations))
        if not self._operations:
            return Future.completed(None)
        for index, operation in enumerate(submitted._operations):
            try:
                transfer = operation.begin(timeout)
            except Exception as error:  # noqa: BLE001 - the others have begun: it is told with theirs
                submitted.ended(index, error)
                continue
            transfer.add_done_callback(_Ended(submitted, index))
        return submitted

    def fetch_add(self, *args: Any, **kwargs: Any) -> Self:
        """Not there."""
        raise NotImplementedError(
            "fetch_add needs an atomic operation in another process's memory, which neither process_vm_writev nor tcp "
            "has: let an endpoint of the owner add"
        )

    def compare_and_swap(self, *args: Any, **kwargs: Any) -> Self:
        """Not there."""
        raise NotImplementedError(
            "compare_and_swap needs an atomic operation in another process's memory, which neither process_vm_writev "
            "nor tcp has: let an endpoint of the owner compare"
        )


class _Ended:
    """Tells of the end of one transfer."""

    __slots__ = ("_index", "_submitted")

    def __init__(self, submitted: _Submitted, index: int) -> None:
        self._submitted = submitted
        self._index = index

    def __call__(self, transfer: Transfer) -> None:
        self._submitted.ended(self._index, transfer.exception())


def _match(src: Layout, dst: Layout) -> bool:
    try:
        matched(src, dst)
    except ValueError:
        return False
    return True


def _first_bytes(local: object, memory: Memory, src: Layout, dst: Layout) -> object:
    """The local end as flat bytes, as many as `src` has; ValueError where they do not fit into `dst`."""
    if not src.contiguous or not dst.contiguous:
        matched(src, dst)  # raises: what is not contiguous must match
    if src.nbytes > dst.nbytes:
        raise ValueError(f"the source {src} has {src.nbytes:,} bytes, the destination {dst} only {dst.nbytes:,}")
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(local, torch.Tensor):
        return local.detach().reshape(-1).view(torch.uint8)[: src.nbytes]
    if numpy is not None and isinstance(local, numpy.ndarray):
        return local.reshape(-1).view(numpy.uint8)[: src.nbytes]
    return memoryview(local).cast("B")[: src.nbytes]  # type: ignore[arg-type]


def _write_head(buffer: RDMABuffer, src: object, timeout: float | None) -> Transfer:
    """Write flat bytes over the first bytes of a contiguous buffer."""
    memory = describe(src)
    head = packed("uint8", 1, (memory.layout.nbytes,))

    def act(carrier: Any) -> str:
        return carry_out(replace(carrier, handle=replace(carrier.handle, layout=head)), memory)

    return buffer._start(act, memory, timeout, write=True)
