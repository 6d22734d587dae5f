"""The frame: a fixed header, a msgpack envelope, a body.

    header (56 bytes, little endian)
        magic u16 | version u8 | kind u8 | envelope length u32 | body length u64
        destination u64 | source u64 | sequence u64 | acknowledgement u64 | epoch u32 | rank u32
    envelope   msgpack array; its first element tells how the body is cut
    body       pickle stream, then the buffers that travel inline

What delivery and relays need stands in the header, so a relay forwards a frame without decoding its
envelope (0.3 us against 2 us), and every rank of a cast shares one envelope and one body: only
destination, sequence, acknowledgement and rank differ, and those are header fields.

Lengths are checked against `Limits` before anything is allocated.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from .errors import ProtocolError

MAGIC: Final = 0x5253
VERSION: Final = 1
HEADER: Final = struct.Struct("<HBBIQQQQQII")
HEADER_SIZE: Final = HEADER.size
ALIGNMENT: Final = 64

# Unsequenced kinds belong to one link or carry cumulative state; losing one is harmless.
ACK: Final = 1  # the header's acknowledgement is the message
CREDIT: Final = 2  # [actor, messages, bytes]: cumulative totals consumed by one actor
SEGMENT: Final = 3  # [segment, size], with the descriptor beside it: pool segment of the sender
RELEASE: Final = 4  # [segment]: the receiver's last view over a segment is gone
PING: Final = 5
PONG: Final = 6
ROUTE: Final = 7  # [process, node, agent process, agent address]: how a relay reaches a process
CAST: Final = 8  # [kind, envelope, destinations, sequences, acks, ranks]: fan out on this host
LOST: Final = 9  # [process, why]: a relay could not pass a frame on
DROP: Final = 10  # [segment]: the sender has given a pool segment up

# Sequenced kinds are delivered once and in order, end to end.
SEQUENCED: Final = 16
CALL: Final = 16  # [layout, actor, method, call, flags, shape, None | seconds left | [seconds left | None, window]]
REPLY: Final = 17  # [layout, call, actor, messages consumed, bytes consumed]
ERROR: Final = 18  # the same as REPLY; the body is a remote failure
CANCEL: Final = 19  # [call, reason]
DEFINE: Final = 20  # [content id, blob]
POST: Final = 21  # [layout, port, flags]: a message to a port
EVENT: Final = 22  # [name, ...]: supervision
TOMBSTONE: Final = 23  # this number will never carry anything
ITEM: Final = 24  # as REPLY: one item of a streaming endpoint; the last frame of the call is a REPLY or an ERROR
MORE: Final = 25  # [call, actor, total]: a streaming endpoint may have sent `total` items by now


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may make us allocate for one frame, in bytes."""

    envelope: int = 16 << 20
    body: int = 64 << 30


def check_header(header: tuple[int, ...], limits: Limits) -> None:
    """Raise ProtocolError when a header is not ours, or asks for more than `limits` allow."""
    if header[0] != MAGIC:
        raise ProtocolError(f"not a Roost frame: it begins with {header[0]:#06x} instead of {MAGIC:#06x}")
    if header[1] != VERSION:
        raise ProtocolError(f"frame version {header[1]}, this side speaks {VERSION}: update the older side")
    if header[3] > limits.envelope:
        raise ProtocolError(f"envelope of {header[3]} bytes, the limit is {limits.envelope}")
    if header[4] > limits.body:
        raise ProtocolError(f"message of {header[4]} bytes, the limit is {limits.body}")


def build(
    kind: int,
    dst: int,
    src: int,
    envelope: bytes,
    body: Sequence[Any] = (),
    *,
    seq: int = 0,
    ack: int = 0,
    epoch: int = 0,
    rank: int = 0,
) -> list[Any]:
    """Build one frame as a list of buffers ready for `sendmsg`: header and envelope joined, then the body."""
    size = 0
    for part in body:
        size += len(part)
    head = HEADER.pack(MAGIC, VERSION, kind, len(envelope), size, dst, src, seq, ack, epoch, rank)
    return [head + envelope, *body]


def aligned(size: int, before: int = 0) -> memoryview:
    """Writable memory for `size` bytes, of which number `before` lies at a multiple of 64 (0.6 us)."""
    memory = bytearray(size + ALIGNMENT - 1)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = -(address + before) % ALIGNMENT
    return memoryview(memory)[start : start + size]


packb = msgpack.Packer(autoreset=True).pack


def unpack_envelope(data: Any) -> list[Any]:
    """Decode an envelope; anything but an array is refused."""
    try:
        value = msgpack.unpackb(data, use_list=True, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"an envelope does not decode: {error}") from error
    if not isinstance(value, list):
        raise ProtocolError(f"an envelope is a {type(value).__name__}, not an array")
    return value
