"""What a handle says, as it travels: under 500 bytes for up to eight dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from .identity import Identity
from .layout import Layout, packed

VERSION = 2


@dataclass(frozen=True, slots=True)
class Handle:
    """One opened array: whose, where, of what shape, and the cookie that its guard cell must hold.

    `base` is the storage block's address in the owner, `offset` element zero's place in it; `address` is
    where the owner's data server listens.
    """

    owner: Identity
    address: tuple[str, int]
    cookie: bytes
    cell: int
    base: int
    offset: int
    layout: Layout
    device: str
    writable: bool
    place: tuple[object, ...] | None = None  # how control messages find the owner; see `Home.place`

    @property
    def key(self) -> bytes:
        return self.cookie[:16]

    def pack(self, token: int) -> bytes:
        o, g = self.owner, self.layout
        strides = None if g.contiguous else g.strides
        fields = (VERSION, o.boot, o.pid_ns, o.pid, o.start, o.node_id, o.proc_id, *self.address, self.cookie)
        rest = (
            self.cell,
            self.base,
            self.offset,
            g.dtype,
            g.itemsize,
            g.shape,
            strides,
            self.device,
            self.writable,
            self.place,
            token,
        )
        return msgpack.packb(fields + rest)  # type: ignore[no-any-return]


def unpack(data: bytes) -> tuple[Handle, int]:
    """The handle and the token it was pickled under."""
    version, *fields = msgpack.unpackb(data, use_list=False)
    if version != VERSION:
        raise ValueError(f"a handle of format {version}, where this roost reads {VERSION}: versions differ")
    boot, pid_ns, pid, start, node_id, proc_id, host, port, cookie, cell, base, offset, *rest = fields
    dtype, itemsize, shape, strides, device, writable, place, token = rest
    layout = packed(dtype, itemsize, shape) if strides is None else Layout(dtype, itemsize, shape, strides)
    owner = Identity(boot, pid_ns, pid, start, node_id, proc_id)
    return Handle(owner, (host, port), cookie, cell, base, offset, layout, device, writable, place), token
