"""Tensors and arrays in messages: layout kept, memory shared as the sender shares it, sent once.

The views of one storage in one message are views of one storage where they arrive. Of each storage
goes the one span of bytes from the first to the last that these views touch: a row of a large matrix
costs a row, and a column costs nearly the matrix (copy it first if that matters). Strides are kept as
they are: transposed, expanded (stride 0) and, for numpy, negative.

Which span it is is known only at the end of the message, so a view names its place in the whole
storage, and the block tells in a second small buffer where its span begins.

A tensor on another device is copied to the CPU to be sent, and back where it arrives: to the same
index of the same device type if that exists there, else to the current device of that type, else it
stays on the CPU. What is sparse, quantized, nested, on `meta` or of a subclass is taken apart by
torch's own reduction; its storages travel as here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pickle import PickleBuffer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

ALIGNMENT = 16  # of a span's start: no element is larger, and vector units like it
STAGED = ("cuda", "xpu", "mps", "hpu", "npu", "mtia")

Reduced = tuple[object, ...]


class Block:
    """On the sender: one storage, or the memory of one base array, and the span of it in use."""

    __slots__ = ("data", "device", "first", "last", "view")

    def __init__(self, device: str, nbytes: int, view: Callable[[int, int], memoryview]) -> None:
        self.device = device
        self.view = view  # keeps the memory alive
        self.first = nbytes
        self.last = 0
        self.data = PickleBuffer(bytearray(1)), PickleBuffer(bytearray(1))  # stand for first and span

    def use(self, first: int, last: int) -> None:
        self.first = min(self.first, first - first % ALIGNMENT)
        self.last = max(self.last, last)


class Blocks:
    """The storages met while one message is pickled."""

    def __init__(self) -> None:
        self._by_place: dict[int, Block] = {}
        self._by_stand_in: dict[int, Callable[[], memoryview]] = {}

    def add(self, place: int, make: Callable[[], Block]) -> Block:
        block = self._by_place.get(place)
        if block is None:
            block = self._by_place[place] = make()
            start, span = block.data
            self._by_stand_in[id(start)] = lambda: memoryview(block.first.to_bytes(8, "little"))
            self._by_stand_in[id(span)] = lambda: block.view(block.first, block.last)
        return block

    def view_of(self, buffer: PickleBuffer) -> memoryview:
        """What goes out of band for a buffer of the stream, once the message is whole."""
        final = self._by_stand_in.get(id(buffer))
        return buffer.raw() if final is None else final()


def reduce_block(obj: object) -> Reduced:
    block = obj
    assert isinstance(block, Block)
    return Arrived, (*block.data, block.device)


class Arrived:
    """On the receiver: a span of a storage, over the buffer it came in."""

    __slots__ = ("_buffer", "_device", "_start", "_storage")

    def __init__(self, start: memoryview, span: memoryview, device: str) -> None:
        self._start = int.from_bytes(start, "little")
        self._buffer = span
        self._device = device
        self._storage: torch.UntypedStorage | None = None

    def storage(self) -> torch.UntypedStorage:
        if self._storage is None:
            import torch

            flat = torch.frombuffer(self.memory(), dtype=torch.uint8)
            if self._device != "cpu":
                flat = flat.to(_nearest(self._device))
            self._storage = flat.untyped_storage()
        return self._storage

    def memory(self) -> memoryview:
        """The span, writable and aligned: copied if the buffer it came in is not."""
        if self._buffer.readonly or _address(self._buffer) % ALIGNMENT:
            self._buffer = memoryview(bytearray(self._buffer))
        return self._buffer

    def offset(self, place: int) -> int:
        """Where in the span lies what was at byte `place` of the whole storage."""
        return place - self._start


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class _Memory:
    """Bytes at an address, for numpy to look at; holds what owns them."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        where = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        self.__array_interface__ = where
        self._owner = owner


def _bytes_at(address: int, nbytes: int, owner: object) -> memoryview:
    """A writable view that keeps `owner` alive. 2 us; torch's own way by `set_` and `numpy()` takes 6."""
    try:
        import numpy
    except ImportError:
        array = (ctypes.c_ubyte * nbytes).from_address(address)
        array._owner = owner  # type: ignore[attr-defined]
        return memoryview(array).cast("B")
    return numpy.asarray(_Memory(address, nbytes, owner)).data


# -- torch


def torch_reducers() -> dict[type, Callable[[Blocks, object], object]]:
    """For the exact types only: torch's own reduction is taken for what derives from them."""
    import torch

    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_parameter,
        torch.UntypedStorage: _reduce_storage,
        torch.storage.TypedStorage: _reduce_typed_storage,
    }


def _reduce_tensor(blocks: Blocks, obj: object) -> object:
    tensor: torch.Tensor = obj  # type: ignore[assignment]
    import torch

    device = tensor.device
    if tensor.layout is not torch.strided or not (_on_cpu(device) or device.type in STAGED):
        return NotImplemented
    if tensor.is_quantized or tensor.is_nested or tensor.__dict__:
        return NotImplemented
    name = _dtype_name(tensor.dtype)
    size, stride = tuple(tensor.size()), tensor.stride()
    marks = (tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    if tensor.numel() == 0:
        return _rebuild_empty, (str(device), name, size, stride, tensor.requires_grad)
    storage = tensor.untyped_storage()
    if storage.data_ptr() == 0:  # zeros without memory, or a wrapper of torch.func
        return NotImplemented
    block = _block_of(blocks, storage)
    item = tensor.element_size()
    first = int(tensor.storage_offset()) * item
    block.use(first, first + (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * item)
    return _rebuild_tensor, (block, name, first, size, stride, *marks)


def _reduce_parameter(blocks: Blocks, obj: object) -> object:
    parameter: torch.nn.Parameter = obj  # type: ignore[assignment]
    if parameter.__dict__:
        return NotImplemented
    return _rebuild_parameter, (parameter.detach(), parameter.requires_grad)


def _reduce_storage(blocks: Blocks, obj: object) -> object:
    storage: torch.UntypedStorage = obj  # type: ignore[assignment]
    if storage.data_ptr() == 0 or not (_on_cpu(storage.device) or storage.device.type in STAGED):
        return NotImplemented
    block = _block_of(blocks, storage)
    block.use(0, storage.nbytes())
    return Arrived.storage, (block,)


def _reduce_typed_storage(blocks: Blocks, obj: object) -> object:
    storage: torch.storage.TypedStorage = obj  # type: ignore[assignment]
    return _rebuild_typed_storage, (storage._untyped_storage, _dtype_name(storage.dtype))


def _block_of(blocks: Blocks, storage: torch.UntypedStorage) -> Block:
    def make() -> Block:
        def view(first: int, last: int) -> memoryview:
            if _on_cpu(storage.device):
                return _bytes_at(storage.data_ptr() + first, last - first, storage)
            return _staged(storage, first, last)

        return Block(str(storage.device), storage.nbytes(), view)

    return blocks.add(storage.data_ptr(), make)


def _on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _staged(storage: torch.UntypedStorage, first: int, last: int) -> memoryview:
    import torch

    flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
    flat.set_(storage, first, (last - first,))  # type: ignore[call-overload]
    here = torch.empty(last - first, dtype=torch.uint8).copy_(flat).untyped_storage()
    return _bytes_at(here.data_ptr(), here.nbytes(), here)


def _nearest(device: str) -> torch.device:
    """The device of that type and index if this process has it, else of that type, else the CPU."""
    import torch

    wanted = torch.device(device)
    module = getattr(torch, wanted.type, None)
    if module is None or not module.is_available():
        return torch.device("cpu")
    if wanted.index is not None and wanted.index >= module.device_count():
        return torch.device(wanted.type)
    return wanted


def _dtype_name(dtype: torch.dtype) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name


_dtype_names: dict[torch.dtype, str] = {}


def _rebuild_tensor(
    block: Arrived,
    dtype: str,
    first: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    conj: bool,
    neg: bool,
) -> torch.Tensor:
    import torch

    storage = block.storage()
    tensor = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device)
    tensor.set_(storage, block.offset(first) // tensor.element_size(), size, stride)
    if conj:
        tensor = tensor.conj()
    if neg:
        tensor = torch._neg_view(tensor)
    if requires_grad:
        tensor.requires_grad_(True)
    return tensor


def _rebuild_empty(
    device: str, dtype: str, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    import torch

    tensor = torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device=_nearest(device))
    return tensor.requires_grad_(requires_grad)


def _rebuild_parameter(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    import torch

    return torch.nn.Parameter(data, requires_grad)


def _rebuild_typed_storage(storage: torch.UntypedStorage, dtype: str) -> torch.storage.TypedStorage:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True)  # type: ignore[no-untyped-call]


# -- numpy


def numpy_reducers() -> dict[type, Callable[[Blocks, object], object]]:
    import numpy

    return {numpy.ndarray: _reduce_array}


def _reduce_array(blocks: Blocks, obj: object) -> object:
    array: np.ndarray = obj  # type: ignore[assignment]
    if array.dtype.hasobject:
        return NotImplemented
    if array.nbytes == 0:
        return _rebuild_empty_array, (array.shape, array.dtype)
    base = _base(array)
    at, first, last = _bounds(array)
    _, low, high = _bounds(base) if base is not array else (at, first, last)
    if not low <= first <= last <= high:
        base, low, high = array, first, last

    def make() -> Block:
        return Block("cpu", high - low, lambda first, last: _bytes_at(low + first, last - first, base))

    block = blocks.add(-id(base), make)
    block.use(first - low, last - low)
    dtype = array.dtype
    name = dtype if dtype.kind == "V" or dtype.metadata else dtype.str  # a dtype itself takes 6 us to pickle
    return _rebuild_array, (block, array.shape, name, at - low, array.strides)


def _base(array: np.ndarray) -> np.ndarray:
    """The array that holds the memory, as far as numpy knows."""
    import numpy

    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def _bounds(array: np.ndarray) -> tuple[int, int, int]:
    """The addresses of element 0, of the first byte, and of the byte after the last."""
    at = first = last = int(array.__array_interface__["data"][0])
    for n, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            first += (n - 1) * stride
        else:
            last += (n - 1) * stride
    return at, first, last + array.itemsize


def _rebuild_array(
    block: Arrived, shape: tuple[int, ...], dtype: np.dtype | str, place: int, strides: tuple[int, ...]
) -> np.ndarray:
    import numpy

    return numpy.ndarray(shape, dtype, block.memory(), block.offset(place), strides)


def _rebuild_empty_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    import numpy

    return numpy.empty(shape, dtype)
