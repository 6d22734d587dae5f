"""Payloads: pickle protocol 5 with the large parts out of band.

`pack` gives a pickle stream and the buffers it leaves out, as views onto the caller's memory: nothing
large is copied here. `unpack` puts them together again.

Unpickling runs code the sender chose. Nothing of a message is run before `unpack` is called with it,
and that must be only after the link has authenticated the peer.

How the time of a small message is kept near that of `pickle.dumps`: picklers are kept and reused (a
new one costs 1.2 us), the C pickler hands both its stream and its buffers to one list's `append`, and
builtin atoms and containers never reach Python code (a `persistent_id` hook would cost 0.1 us for
each of them). Measured on an idle core, us:

    what                                    pack    unpack   pickle.dumps   cloudpickle.dumps
    (1, "hello", 3)                          0.9       0.3        0.3
    importable object with 3 fields          2.8       1.4        1.6
    __main__ dataclass with 3 fields         3.0       2.4          -             190
    __main__ function over a constant        6.7       1.8          -
    list of 10,000 ints                      100                   98
    tensor                                    14       7.1         39
    numpy array                               12       3.2        5.0
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import cloudpickle

from . import tensors, unpicklable
from .definitions import DEFINITIONS, DefinitionMissing, Entry, reduce_code
from .unpicklable import UnpicklableError

__all__ = ["DefinitionMissing", "Packed", "UnpicklableError", "pack", "unpack"]

OUT_OF_BAND = 64 * 1024  # bytes and bytearrays of at least this leave the stream; fixed by the C pickler


@dataclass(slots=True)
class Packed:
    """A message's payload. The buffers are views onto the caller's memory, to be copied before it goes on."""

    data: bytes
    buffers: list[memoryview]
    definitions: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        return len(self.data) + sum(buffer.nbytes for buffer in self.buffers)


class _File:
    __slots__ = ("write",)

    def __init__(self, write: Callable[[object], None]) -> None:
        self.write = write


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = copyreg.dispatch_table  # a plain dict; cloudpickle's chained maps cost 1 us an object

    def __init__(self) -> None:
        self.events: list[Any] = []
        pickle.Pickler.__init__(self, _File(self.events.append), 5, buffer_callback=self.events.append)
        self.globals_ref: dict[int, dict[str, object]] = {}
        self.proto = 5
        self.noted: dict[bytes, Entry] = {}
        self.blocks: tensors.Blocks | None = None

    def reducer_override(self, obj: object) -> object:
        kind = type(obj)
        if kind is type or kind is FunctionType:
            return _reduce_definition(self, obj)
        route = _routes.get(kind)
        if route is not None:
            return route(self, obj)
        entry = _entries.get(id(kind))
        if entry is not None and entry.new is not None:
            self.noted[entry.id] = entry
            return *entry.new, obj.__dict__
        if kind.__module__ in _late:
            _add_late_routes(kind.__module__)
            return self.reducer_override(obj)
        return _reduce_definition(self, obj) if isinstance(obj, type) else NotImplemented

    def by_value(self, obj: object) -> object:
        return super().reducer_override(obj)

    def own_blocks(self) -> tensors.Blocks:
        if self.blocks is None:
            self.blocks = tensors.Blocks()
        return self.blocks


Route = Callable[[_Packer, object], object]


def _reduce_definition(packer: _Packer, obj: object) -> object:
    entry = _entries.get(id(obj))
    if entry is None or DEFINITIONS.stale():
        entry = DEFINITIONS.find(obj)
        if entry is None:
            return packer.by_value(obj)
    if entry.reduced is None:
        return NotImplemented
    packer.noted[entry.id] = entry
    return entry.reduced


def _reduce_memoryview(packer: _Packer, obj: object) -> object:
    view = cast(memoryview, obj)
    flat = view if view.c_contiguous else bytearray(view.tobytes())
    return _as_view, (PickleBuffer(flat), view.format, view.shape)


def _as_view(data: memoryview, format: str, shape: tuple[int, ...]) -> memoryview:
    """With its format and shape if it is of one native type and not empty, else as bytes."""
    if not data.nbytes:
        return memoryview(bytearray())
    flat = memoryview(data).cast("B")
    return flat.cast(cast(Any, format), shape) if len(format.lstrip("@")) == 1 else flat


def _in_blocks(reduce: Callable[[tensors.Blocks, object], object]) -> Route:
    def route(packer: _Packer, obj: object) -> object:
        return reduce(packer.own_blocks(), obj)

    return route


def _plain(reduce: Callable[[object], object]) -> Route:
    return lambda packer, obj: reduce(obj)


_routes: dict[type, Route] = {
    kind: _plain(reduce) for kind, reduce in cloudpickle.Pickler._dispatch_table.items() if kind is not MethodType
}
_routes[CodeType] = _plain(reduce_code)
_routes[memoryview] = _reduce_memoryview
_routes[tensors.Block] = _plain(tensors.reduce_block)

# Added when an object of that module is first met: neither library is imported here.
_late: dict[str, Callable[[], dict[type, Callable[[tensors.Blocks, object], object]]]] = {
    "torch": tensors.torch_reducers,
    "torch.nn.parameter": tensors.torch_reducers,
    "torch.storage": tensors.torch_reducers,
    "numpy": tensors.numpy_reducers,
}


def _add_late_routes(module: str) -> None:
    reducers = _late.get(module)
    if reducers is not None:  # else another thread was here first
        _routes.update({kind: _in_blocks(reduce) for kind, reduce in reducers().items()})
        for name in [name for name, each in list(_late.items()) if each is reducers]:
            _late.pop(name, None)


_entries = DEFINITIONS.by_object
_idle: list[_Packer] = []
_KEEP = 1024  # bytes: what wrote a longer stream has a large memo, which costs up to 20 us to clear each time
_save = pickle.Pickler.dump  # cloudpickle's own wraps it


def pack(obj: object, what: str = "argument") -> Packed:
    """Pickle `obj` with its large parts out of band, as views onto the caller's memory.

    Out of band are the memory of CPU tensors and of numpy arrays (of each storage the span that the
    views in this message need, once), `bytes` and `bytearray` of at least 64 KiB, any `memoryview`,
    and what other types give as a `PickleBuffer`. `definitions` lists the classes and functions that
    the peer must have learned. Safe to call from several threads, and from within a `__reduce__`
    that it calls.

    Raises UnpicklableError, a TypeError, which names the path to what could not be pickled; `what`
    is how its message calls `obj`.
    """
    try:
        packer = _idle.pop()
    except IndexError:
        packer = _Packer()
    try:
        _save(packer, obj)
        return _finish(packer)
    except Exception as error:  # noqa: BLE001  (whatever a __reduce__ of the user's raises)
        return _pack_again(obj, what, error)


def _pack_again(obj: object, what: str, error: Exception) -> Packed:
    """A function that was importable when it was last sent may have been replaced in its module."""
    if isinstance(error, pickle.PicklingError):
        DEFINITIONS.forget_importable()
        packer = _Packer()
        try:
            _save(packer, obj)
            return _finish(packer)
        except Exception as again:  # noqa: BLE001  (whatever a __reduce__ of the user's raises)
            error = again
    raise unpicklable.explain(obj, what, error, _dump) from error


def _dump(obj: object) -> None:
    _save(_Packer(), obj)


def _finish(packer: _Packer) -> Packed:
    events = packer.events
    packed = Packed(events[0], [], ()) if len(events) == 1 else splice(events, packer.blocks)
    if packer.noted:
        packed.definitions = DEFINITIONS.requires(packer.noted)
        packer.noted = {}
    if len(packed.data) < _KEEP:
        packer.clear_memo()
        events.clear()
        packer.blocks = None
        if packer.globals_ref:
            packer.globals_ref = {}
        _idle.append(packer)
    return packed


_BYTES = b"\x8c\x08builtins\x8c\x05bytes\x93\x97\x85R"  # bytes(next buffer)
_BYTEARRAY = b"\x8c\x08builtins\x8c\x09bytearray\x93\x97\x85R"
_FRAME = 0x95


def splice(events: list[object], blocks: tensors.Blocks | None) -> Packed:
    """Make of what a pickler wrote a stream and buffers, in the stream's order.

    For bytes of 64 KiB and more the C pickler flushes its stream up to and with the opcode and
    length (BINBYTES, BINBYTES8, BYTEARRAY8), then writes the very object, uncopied. There the opcode
    is replaced by a call with the next out-of-band buffer. If a pickler were to do otherwise, nothing
    would match and the bytes would stay in the stream. A large frame of opcodes is told from bytes
    by its own head.
    """
    stream: list[bytes] = []
    buffers: list[memoryview] = []
    for event in events:
        if isinstance(event, PickleBuffer):
            buffers.append(blocks.view_of(event) if blocks is not None else event.raw())
            continue
        head = _payload_head(stream[-1], event) if stream else 0
        if head and isinstance(event, bytes | bytearray):
            stream[-1] = stream[-1][:-head]
            stream.append(_BYTES if isinstance(event, bytes) else _BYTEARRAY)
            buffers.append(memoryview(event))
        else:
            stream.append(bytes(cast(bytes, event)))
    return Packed(b"".join(stream), buffers, ())


def _payload_head(before: bytes, event: object) -> int:
    """The length of the opcode and count at the end of `before` that announce `event`, or 0."""
    if not isinstance(event, bytes | bytearray):
        return 0
    size = len(event)
    if size < OUT_OF_BAND or (event[0] == _FRAME and size - int.from_bytes(event[1:9], "little") in (9, 14, 18)):
        return 0
    if isinstance(event, bytearray):
        return 9 if before.endswith(b"\x96" + size.to_bytes(8, "little")) else 0
    if size < 1 << 32 and before.endswith(b"B" + size.to_bytes(4, "little")):
        return 5
    return 9 if before.endswith(b"\x8e" + size.to_bytes(8, "little")) else 0


def unpack(data: bytes | bytearray | memoryview, buffers: Sequence[memoryview] = ()) -> object:
    """The object that `pack` was given. Tensors and arrays arrive over `buffers` without a copy.

    They are writable: a buffer that is read-only or not aligned to 16 bytes is copied first. They
    keep their buffer alive, and share nothing with the sender if `buffers` do not.

    Raises DefinitionMissing if the message names a class whose definition was not learned, and
    whatever the unpickled classes raise. Trusts its input: only for authenticated peers.
    """
    return pickle.loads(data, buffers=buffers)
