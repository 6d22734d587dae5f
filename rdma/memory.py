"""The memory behind a torch tensor, a numpy array or anything with the buffer protocol.

Nothing is copied or imported here: torch and numpy are looked up among the loaded modules, since an object of
theirs cannot exist before they are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..actors.wire.copying import address_of
from .layout import Layout

if TYPE_CHECKING:
    import numpy
    import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """An array's element zero, geometry, and `keep`, the object whose life keeps the memory mapped."""

    layout: Layout
    address: int
    writable: bool
    device: str
    keep: object


@dataclass(frozen=True, slots=True)
class Span:
    """One storage block: what is registered, whatever views lie on it."""

    base: int
    nbytes: int
    device: str
    keep: object


def describe(obj: object) -> Memory:
    """The memory of a tensor, array, memoryview or bytes-like object.

    TypeError for what has no memory of its own (sparse, quantised, DTensor, object arrays); ValueError for
    lazy conjugates, whose bytes are not their values.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _of_tensor(obj)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        return _of_array(obj)
    return _of_buffer(obj)


def span_of(memory: Memory) -> Span:
    """The storage block that an array lies in, with what keeps it."""
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    keep = memory.keep
    if torch is not None and isinstance(keep, torch.Tensor):
        storage = keep.untyped_storage()
        return Span(storage.data_ptr(), storage.nbytes(), memory.device, storage)
    if numpy is not None and isinstance(keep, numpy.ndarray):
        root = keep
        while isinstance(root.base, numpy.ndarray):
            root = root.base
        low, high = numpy.lib.array_utils.byte_bounds(root)
        return Span(low, high - low, "cpu", root)
    low, high = memory.layout.span()
    return Span(memory.address + low, high - low, "cpu", keep)


def extent_of(keep: object) -> tuple[int, int] | None:
    """Where a torch storage now lies, address and bytes; None for what cannot move."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(keep, torch.UntypedStorage):
        return None
    return keep.data_ptr(), keep.nbytes()


@lru_cache(maxsize=64)
def _torch_dtype(dtype: torch.dtype) -> tuple[str, int]:
    return str(dtype).removeprefix("torch."), int(dtype.itemsize)


def _of_tensor(t: torch.Tensor) -> Memory:
    torch = sys.modules["torch"]
    if t.layout is not torch.strided or t.is_quantized:
        raise TypeError(f"a {t.layout} tensor has no single block of memory: pass its parts, or a dense tensor")
    if type(t) is not torch.Tensor and hasattr(t, "to_local"):
        raise TypeError("a DTensor's memory is spread over ranks: pass t.to_local()")
    if t.device.type == "meta":
        raise TypeError("a meta tensor has no memory")
    if t.is_conj() or t.is_neg():
        raise ValueError("the tensor is a lazy conjugate or negative view: call resolve_conj().resolve_neg() first")
    name, size = _torch_dtype(t.dtype)
    device = "cpu" if t.is_cpu else str(t.device)
    return Memory(
        Layout(name, size, tuple(t.shape), tuple([s * size for s in t.stride()])),
        t.data_ptr(),
        True,
        device,
        t,
    )


@lru_cache(maxsize=64)
def _numpy_dtype(dtype: numpy.dtype[Any]) -> str:
    return dtype.name if dtype.isnative and dtype.names is None else str(dtype.descr)


def _of_array(a: numpy.ndarray[Any, Any]) -> Memory:
    if a.dtype.hasobject:
        raise TypeError("an array of Python objects holds pointers of this process: they mean nothing elsewhere")
    name = _numpy_dtype(a.dtype)
    address: int = a.__array_interface__["data"][0]
    return Memory(Layout(name, a.dtype.itemsize, a.shape, a.strides), address, a.flags.writeable, "cpu", a)


_FORMATS = {"?": "bool", "e": "float16", "f": "float32", "d": "float64", "c": "uint8"}


def _of_buffer(obj: object) -> Memory:
    try:
        view = memoryview(obj)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"RDMABuffer takes a torch tensor, a numpy array or a bytes-like object, not {type(obj).__name__}"
        ) from None
    if view.suboffsets:
        raise TypeError("a buffer of pointers to rows has no single block of memory")
    address = address_of(view)
    kind = view.format.lstrip("@")
    if kind in "bhilqn":
        name = f"int{8 * view.itemsize}"
    elif kind in "BHILQN":
        name = f"uint{8 * view.itemsize}"
    else:
        name = _FORMATS.get(kind, kind)
    shape, strides = view.shape or (), view.strides or ()
    return Memory(Layout(name, view.itemsize, shape, strides), address, not view.readonly, "cpu", view)
