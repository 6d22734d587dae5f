"""`RDMABuffer`: a small handle to a tensor's memory that any process of the job may read from or write to."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from . import cma, server
from .errors import CmaRefused, RDMAError, StaleBuffer
from .handle import Handle, unpack
from .home import home
from .identity import Identity, me
from .layout import Layout, matched, refuse_expanded
from .memory import Memory, describe
from .moves import Carrier, carry_out, gather
from .peer import Way, choose, known, way_to
from .pool import pool
from .registry import Export, registry
from .service import holdings, receivers
from .transfer import Transfer

NOWHERE = ("", 0)  # the address of a handle that has not been sent: no data server was needed yet
INLINE = cma.ONE_CALL  # bytes that are moved on the calling thread where no socket is waited for


class RDMABuffer:
    """Opens a tensor, array or bytes-like object to one-sided reads and writes.

    The handle pickles to under 500 bytes; send it through any endpoint. The owner's actors take no part in a
    transfer: they may be busy, and on one host even stopped. The memory stays alive while a handle of it
    does, here or elsewhere (see `drop`), and is not copied: a reader sees it as it is while the bytes move.
    Any shape and strides, empty ones too. Do not resize the storage while it is open.

    >>> weights = RDMABuffer(torch.arange(6.0).view(2, 3))  # doctest: +SKIP
    >>> weights  # doctest: +SKIP
    RDMABuffer(float32[2, 3], 24 bytes, owner process 0x5f3 (pid 4711 on node-0), open here)
    >>> weights.read_into(torch.empty(2, 3)).get(timeout=10)  # in any process  # doctest: +SKIP
    """

    __slots__ = ("__weakref__", "_dropped", "_export", "_handle", "_pid", "_remote", "_small", "_way")

    def __init__(self, data: object) -> None:
        self._dropped = True  # until all is set: a refused buffer is collected too
        memory, owner = describe(data), me()
        export = registry().export(memory)
        base = export.block.span.base
        offset = memory.address - base if memory.layout.nbytes else 0
        self._set(
            Handle(
                owner,
                NOWHERE,
                export.cookie,
                export.cell[0],
                base,
                offset,
                memory.layout,
                memory.device,
                memory.writable,
            ),
            export,
            remote=False,
        )

    def _set(self, handle: Handle, export: Export | None, *, remote: bool) -> None:
        self._handle, self._export, self._remote = handle, export, remote
        self._way: Way | None = None
        self._small = handle.layout.contiguous and 0 < handle.layout.nbytes <= cma.ONE_CALL
        self._pid, self._dropped = os.getpid(), False

    def read_into(self, dst: object, *, timeout: float | None = None) -> Transfer:
        """Copy the buffer into `dst`, of the same dtype and shape, or flat uint8 of as many bytes.

        Begins at once; `dst` must not be used before the transfer is done. `timeout` bounds the whole
        transfer; without it, one that makes no progress for a minute fails. Small reads on one host are done
        on return.

        ValueError, TypeError here: `dst` does not fit, is read-only or expanded. From the transfer:
        StaleBuffer, OwnerDied, TransferTimeout, RDMAError; the content of `dst` is then undefined.
        """
        memory = describe(dst)
        _check(self._handle.layout, memory.layout)
        if not memory.writable:
            raise ValueError(f"the destination {memory.layout} is read-only")
        if self._small and self._way is not None and self._way.backend == "cma" and not self._dropped:
            transfer = self._read_now(memory)
            if transfer is not None:
                return transfer
        return self._start(lambda carrier: carry_out(carrier, memory), memory, timeout, write=False)

    def write_from(self, src: object, *, timeout: float | None = None) -> Transfer:
        """Copy `src`, of the same dtype and shape, or flat uint8 of as many bytes, into the buffer.

        As `read_into`, the other way. Not atomic: whoever reads meanwhile may see part of it, and concurrent
        writers mix. After an error the buffer's content is undefined.
        """
        memory = describe(src)
        _check(memory.layout, self._handle.layout)
        if not self._handle.writable:
            raise ValueError(f"the buffer {self._handle.layout} was made of read-only memory")
        return self._start(lambda carrier: carry_out(carrier, memory), memory, timeout, write=True)

    def read_pieces(self, pieces: Sequence[tuple[int, object]], *, timeout: float | None = None) -> Transfer:
        """Copy pieces of a flat uint8 buffer into several arrays, as one transfer: all of one generation.

        `pieces` are (first byte, destination); a destination takes as many bytes as it has, in C order. One
        call moves up to 1,024 of them. Errors as for `read_into`.
        """
        places = [(offset, describe(dst)) for offset, dst in pieces]
        size = self._handle.layout.nbytes
        for offset, memory in places:
            if not 0 <= offset <= size - memory.layout.nbytes:
                raise ValueError(f"{memory.layout} at byte {offset} reaches outside a buffer of {size} bytes")
            if not memory.writable:
                raise ValueError(f"the destination {memory.layout} is read-only")
            refuse_expanded(memory.layout)
        return self._start(lambda carrier: gather(carrier, places), None, timeout, write=False)

    def drop(self) -> Transfer:
        """Give the handle up; returns a finished transfer, so that it may be awaited.

        In the owner: all handles of this buffer, everywhere, are stale from now on, and the memory is
        released, whoever still holds one. Let writers of other processes finish first. Elsewhere: only this
        handle ends.
        """
        if not self._dropped:
            self._dropped = True
            self._let_go(drop=True)
        done = Transfer(self._handle, write=False)
        done.run(0, lambda: "local")
        return done

    def size(self) -> int:
        """Bytes of the elements."""
        return self._handle.layout.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self._handle.layout.shape

    @property
    def dtype(self) -> str:
        """Torch's name of the element type, as "bfloat16"."""
        return self._handle.layout.dtype

    @property
    def owner(self) -> int:
        """The `proc_id` of the process whose memory it is."""
        return self._handle.owner.proc_id

    @property
    def backend(self) -> str:
        """The way from this process: "local", "cma" or "tcp"; "none" where its owner is gone. `explain` says why."""
        return self.explain().partition(":")[0]

    def explain(self, peer: Identity | None = None) -> str:
        """Which way a transfer goes and why: from this process, or from `peer`.

        >>> weights.explain()  # doctest: +SKIP
        'cma: both processes are on node node-0, under one kernel'
        """
        h = self._handle
        try:
            way = choose(h.owner, peer, h.device) if peer else self._way or way_to(h.owner, h.device, h.cell, h.cookie)
        except RuntimeError as error:
            return f"none: {error}"
        return f"{way.backend}: {way.why}"

    def advance(self) -> RDMABuffer:
        """Make every handle of it stale, this one too, and return the one of the content to come.

        For an owner that rewrites a buffer in place: a read that meets the change fails instead of mixing
        both.
        """
        export = self._mine()
        registry().advance(export)  # counts the handle that follows
        after = RDMABuffer.__new__(RDMABuffer)
        after._set(replace(self._handle, cookie=export.cookie), export, remote=False)
        return after

    def _mine(self) -> Export:
        if self._dropped or self._export is None or self._pid != os.getpid():
            raise RDMAError(f"only the owner of {self!r} can do this")
        return self._export

    def _start(
        self, act: Callable[[Carrier], str], near: Memory | None, timeout: float | None, *, write: bool
    ) -> Transfer:
        """Run `act` with the way to the buffer; on this thread where it is short."""
        h = self._located()
        deadline = None if timeout is None else time.monotonic() + timeout
        transfer = Transfer(h, write)
        way = self._way = self._way or known(h.owner, h.device)

        def work() -> str:
            if self._dropped:
                raise StaleBuffer(f"this handle of {h.layout} of {h.owner} was dropped")
            way = self._way = self._way or way_to(h.owner, h.device, h.cell, h.cookie)
            return act(Carrier(h, way, deadline, write))

        nbytes = h.layout.nbytes
        short = nbytes <= INLINE and near is not None and near.device == "cpu"
        if short and way is not None and way.backend != "tcp":
            transfer.run(nbytes, work)
        else:
            pool().submit(lambda: transfer.run(nbytes, work))
        return transfer

    def _located(self) -> Handle:
        """The handle, with the data server's address where that is needed: it is started on first need."""
        h = self._handle
        if h.address == NOWHERE and h.device != "cpu" and not self._remote:
            h = self._handle = replace(h, address=server.address())
        return h

    def _read_now(self, memory: Memory) -> Transfer | None:
        """A small read in one call; None where it needs the long way. 4 KiB into a tensor: 10 us in all, not
        25.
        """
        h = self._handle
        if memory.device != "cpu" or not memory.layout.contiguous:
            return None
        begin, error = time.perf_counter(), None
        nbytes = h.layout.nbytes
        try:
            cma.read_small(h.owner, h.cell, h.cookie, h.base + h.offset, memory.address, nbytes)
        except CmaRefused:
            return None
        except RDMAError as failure:
            error = failure
        transfer = Transfer(h, write=False)
        transfer.end("cma", nbytes, time.perf_counter() - begin, error)
        return transfer

    def _let_go(self, *, drop: bool) -> None:
        if self._pid != os.getpid():
            return  # a forked child's copy holds nothing
        if self._remote:
            holdings().gone(self.owner, self._handle.key)
        elif self._export is not None:
            (registry().drop if drop else registry().collected)(self._export)

    def __del__(self) -> None:
        if not self._dropped and not sys.is_finalizing():
            self._let_go(drop=False)

    def __copy__(self) -> RDMABuffer:
        return self

    def __deepcopy__(self, _memo: object) -> RDMABuffer:
        return self

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        if self._dropped:
            raise StaleBuffer(f"{self!r} was dropped: it cannot be sent")
        who = receivers()
        if self._remote or self._export is None or self._pid != os.getpid():
            token = holdings().passed_on(self.owner, self._handle.key, who)
        else:
            token = secrets.randbits(62) << 1
            registry().pin(self._export, token, who)
            if self._handle.address == NOWHERE:
                self._handle = replace(self._handle, address=server.address(), place=home().place())
        return _arrived, (self._handle.pack(token),)

    def __repr__(self) -> str:
        h = self._handle
        if self._dropped:
            state = "dropped"
        elif self._remote:
            state = "remote"
        else:
            state = "open here" if self._export is not None and self._export.open else "dropped"
        return f"RDMABuffer({h.layout}, {h.layout.nbytes:,} bytes, owner {h.owner}, {state})"


def _arrived(data: bytes) -> RDMABuffer:
    """A handle off the wire; acknowledges it to its owner."""
    handle, token = unpack(data)
    here = me()
    buffer = RDMABuffer.__new__(RDMABuffer)
    buffer._dropped = True
    if handle.owner.same_process(here):
        buffer._set(handle, registry().adopt(handle.key, token, here.proc_id), remote=False)
    else:
        buffer._set(handle, None, remote=True)
        home().learn(handle.place)
        holdings().came(handle.owner.proc_id, handle.key, token)
    return buffer


def _check(src: Layout, dst: Layout) -> None:
    """ValueError, at the call, for what `plan` would refuse."""
    if src != dst:
        matched(src, dst)
    if 0 in dst.strides:
        refuse_expanded(dst)
