"""Bodies: how a pickled value and its buffers become the parts of a frame, and again a value.

Three ways for the buffers:
  - none or few bytes: inline, copied once (value semantics: what was sent is what it was at the call);
  - large, receivers on this host: copied once into a pool segment, whose descriptor passes once a receiver;
  - large, receivers elsewhere: inline, each at a multiple of 64 bytes, received straight into place.

The layout, first element of every envelope that has a body: None (pickle only), `[n, n1, n2, …]` inline
sizes, or `[n, [owner, segment, private, [[offset, size], …]]]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .wire import pickling
from .wire.errors import ProtocolError
from .wire.frame import ALIGNMENT as ALIGN
from .wire.frame import aligned
from .wire.pool import CAST as CAST_THRESHOLD
from .wire.pool import ONE_RECEIVER as SINGLE_THRESHOLD
from .wire.pool import Pool, Segment

_PADDING = tuple(bytes(n) for n in range(ALIGN))


@dataclass(slots=True)
class Body:
    """A value ready to be framed: `parts` follow the envelope; `segment` holds what is not inline."""

    layout: Any
    parts: list[Any]
    nbytes: int
    definitions: tuple[bytes, ...] = ()
    segment: Segment | None = None


def inline(packed: pickling.Packed) -> Body:
    """Everything in the frame itself, copied."""
    data = packed.data
    if not packed.buffers:
        return Body(None, [data], len(data), packed.definitions)
    layout: list[int] = [len(data)]
    parts: list[Any] = [data]
    size = len(data)
    for buffer in packed.buffers:
        pad = -size % ALIGN
        if pad:
            parts.append(_PADDING[pad])
        layout.append(buffer.nbytes)
        if buffer.nbytes:
            parts.append(bytes(buffer))
        size += pad + buffer.nbytes
    return Body(layout, parts, size, packed.definitions)


def pooled(packed: pickling.Packed, pool: Pool, owner: int, receivers: Sequence[int]) -> Body | None:
    """The buffers in a segment of the pool, for receivers on this host; None where that does not pay, or is full."""
    if not packed.buffers or not receivers:
        return None
    size = sum(buffer.nbytes for buffer in packed.buffers)
    if size < (SINGLE_THRESHOLD if len(receivers) == 1 else CAST_THRESHOLD):
        return None
    segment = pool.take(size + ALIGN * len(packed.buffers))
    if segment is None:
        return None
    spans = pool.fill(segment, packed.buffers)
    pool.lend(segment, receivers)
    layout = [len(packed.data), [owner, segment.id, len(receivers) > 1, [list(span) for span in spans]]]
    return Body(layout, [packed.data], len(packed.data), packed.definitions, segment)


def segment_of(layout: Any) -> tuple[int, int, bool, list[tuple[int, int]]] | None:
    """(owner, segment, private, spans) of a layout whose buffers are in a pool segment."""
    if isinstance(layout, list) and len(layout) == 2 and isinstance(layout[1], list):
        owner, segment, private, spans = layout[1]
        return owner, segment, private, [tuple(span) for span in spans]
    return None


def cut(layout: Any, body: Any) -> tuple[Any, list[Any]]:
    """Cut an inline body into its pickle and its buffers (writable, each aligned)."""
    if layout is None:
        return body, []
    if not isinstance(layout, list) or not all(isinstance(n, int) and n >= 0 for n in layout):
        raise ProtocolError(f"a body's layout makes no sense: {layout!r}")
    view = memoryview(body)
    if view.readonly:  # small frames are cut from the receive buffer as bytes
        view = aligned(len(body))
        view[:] = body
    at, buffers = layout[0], []
    for size in layout[1:]:
        at += -at % ALIGN
        buffers.append(view[at : at + size])
        at += size
    if at > len(view):
        raise ProtocolError(f"a body of {len(view)} bytes is said to hold {at}")
    return view[: layout[0]], buffers
