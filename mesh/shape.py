"""Extents, points and strided shapes: the pure arithmetic under every mesh.

A mesh is a table of members and a `Shape`. Slicing, splitting, flattening and renaming never copy the
table: they make another Shape over it, whose strided base ranks index the same members. So a slice keeps
the identity of what it was cut from, costs the same for 8 ranks or 8,000, and can be sent as a few integers.

Members are always in row-major order of the dims, and steps are positive: the order of ranks is what
shards and process groups are laid out by, so no operation here can reverse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import index as as_index
from typing import Self, SupportsIndex, TypeAlias, overload

from .strides import NDSlice, Slice
from .trait import MeshTrait

__all__ = ["Extent", "Index", "MeshTrait", "NDSlice", "Point", "Region", "Shape", "Slice", "UnknownDim"]

Span: TypeAlias = slice  # under another name, for classes with a method called slice
Index: TypeAlias = int | Span


class UnknownDim(KeyError):
    """A dimension was asked for by a name that the shape does not have."""

    def __init__(self, label: object, labels: Sequence[str]) -> None:
        super().__init__(label, tuple(labels))

    def __str__(self) -> str:
        return _no_dim(*self.args)


def _no_dim(label: object, labels: Sequence[str]) -> str:
    return f"Shape does not have dimension labeled {label!r}; there {'are' if labels else 'are none'}{_listing(labels)}"


def _listing(labels: Sequence[str]) -> str:
    return " " + ", ".join(repr(label) for label in labels) if labels else ""


def _integer(what: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be an int, not {type(value).__name__} {value!r}")
    return as_index(value)


def _checked_size(label: str, value: object) -> int:
    size = _integer(f"the size of dimension {label!r}", value)
    if size < 1:
        raise ValueError(f"dimension {label!r} has size {size}; sizes are at least 1")
    return size


def _checked_labels(labels: Iterable[object]) -> tuple[str, ...]:
    checked: list[str] = []
    for label in labels:
        if not isinstance(label, str):
            raise TypeError(f"a dimension is named by a str, not by {type(label).__name__} {label!r}")
        if not label.isidentifier():
            raise ValueError(f"{label!r} cannot name a dimension: it must be usable as a keyword argument")
        if label in checked:
            raise ValueError(f"dimension {label!r} is named twice in {[*checked, label]}")
        checked.append(label)
    return tuple(checked)


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Extent(Mapping[str, int]):
    """Named dimensions and their sizes, in order.

    Made as `Extent(labels, sizes)`, `Extent(mapping)` or `Extent.of(**sizes)`. A mapping from label to
    size; `len` is the number of dims, `nelements` the number of members. Order counts in comparisons.
    Without dims it is the extent of a single member.

    Raises ValueError for a size below 1 and for repeated or unusable names, TypeError for what is no int.

    >>> extent = Extent({"hosts": 2, "gpus": 4})
    >>> extent, extent.nelements, list(extent), extent["gpus"]
    ({hosts: 2, gpus: 4}, 8, ['hosts', 'gpus'], 4)
    >>> extent == Extent(["hosts", "gpus"], [2, 4]) == Extent.of(hosts=2, gpus=4)
    True
    """

    labels: tuple[str, ...]
    sizes: tuple[int, ...]

    @overload
    def __init__(self, labels: Mapping[str, int], /) -> None: ...
    @overload
    def __init__(self, labels: Iterable[str], sizes: Iterable[int]) -> None: ...
    def __init__(self, labels: Iterable[str], sizes: Iterable[int] | None = None) -> None:
        if isinstance(labels, str):
            raise TypeError(f"labels must be a sequence of names, not the str {labels!r}")
        if sizes is None:
            if not isinstance(labels, Mapping):
                raise TypeError("Extent takes labels and sizes, or one mapping from label to size")
            sizes = labels.values()
        names, values = _checked_labels(labels), tuple(sizes)
        if len(names) != len(values):
            raise ValueError(f"{len(names)} labels {names} do not go with {len(values)} sizes {values}")
        object.__setattr__(self, "labels", names)
        object.__setattr__(self, "sizes", tuple(map(_checked_size, names, values)))

    @classmethod
    def of(cls, /, **sizes: int) -> Self:
        """The extent of the dims given as keywords: `Extent.of(hosts=2, gpus=4)`."""
        return cls(sizes)

    @property
    def nelements(self) -> int:
        """The number of members: the product of all sizes."""
        return prod(self.sizes)

    @property
    def region(self) -> Shape:
        """The dense row-major Shape of this extent, over base ranks 0 to `nelements` - 1."""
        return Shape(self.labels, Slice.new_row_major(self.sizes))

    def point(self, /, **coordinates: int) -> Point:
        """The Point at one coordinate for each dim (negative ones count from the end).

        >>> Extent.of(hosts=2, gpus=4).point(hosts=1, gpus=-1).rank
        7
        """
        shape = self.region.index(**coordinates)
        if shape.labels:
            raise TypeError(f"a point has a coordinate in each dimension; missing:{_listing(shape.labels)}")
        return Point(shape.ndslice.offset, self)

    def points(self) -> Iterator[Point]:
        """All Points, in rank order."""
        return (Point(rank, self) for rank in range(self.nelements))

    def __getitem__(self, label: str) -> int:
        try:
            return self.sizes[self.labels.index(label)]
        except ValueError:
            raise UnknownDim(label, self.labels) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extent):
            return self.labels == other.labels and self.sizes == other.sizes
        if isinstance(other, dict):
            return list(self.items()) == list(other.items())
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.labels, self.sizes))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{label}: {size}" for label, size in self.items()) + "}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Point(Mapping[str, int]):
    """One member of an extent: a mapping from label to coordinate, with its row-major `rank`. Hashable.

    Raises IndexError when the extent has no such rank.

    >>> point = Point(5, Extent.of(a=2, b=3))
    >>> point, point["b"], point.size("b"), point.size()
    ({'a': 1/2, 'b': 2/3}, 2, 3, 6)
    """

    rank: int
    extent: Extent

    def __post_init__(self) -> None:
        members = self.extent.nelements
        if not 0 <= self.rank < members:
            raise IndexError(f"no rank {self.rank} in {self.extent}, which has {members} members")

    def size(self, label: str | None = None) -> int:
        """The size of one dim of the extent, or of all of it."""
        return self.extent.nelements if label is None else self.extent[label]

    def __getitem__(self, label: str) -> int:
        size, labels = self.extent[label], self.extent.labels
        return self.rank // prod(self.extent.sizes[labels.index(label) + 1 :]) % size

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent.labels)

    def __len__(self) -> int:
        return len(self.extent.labels)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return self.rank == other.rank and self.extent == other.extent
        return dict(self) == other if isinstance(other, dict) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.rank, self.extent))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{label!r}: {self[label]}/{self.extent[label]}" for label in self) + "}"


@dataclass(frozen=True, slots=True, repr=False)
class Shape:
    """Named dims over strided base ranks: `Shape(labels, Slice)`. `Region` is the same class.

    Iterates over base ranks; `len` is the number of members. A dense one is had from `Extent.region`.

    >>> shape = Extent.of(hosts=2, gpus=4).region
    >>> shape.slice(gpus=slice(1, None, 2)).ranks()
    (1, 3, 5, 7)
    >>> shape.at("hosts", 1).ranks(), shape.coordinates(6), shape.point(6)
    ((4, 5, 6, 7), {'hosts': 1, 'gpus': 2}, {'hosts': 1/2, 'gpus': 2/4})
    """

    labels: tuple[str, ...]
    ndslice: Slice

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _checked_labels(self.labels))
        if len(self.labels) != self.ndslice.ndim:
            raise ValueError(f"{len(self.labels)} labels {self.labels} do not go with {self.ndslice}")

    @classmethod
    def unity(cls) -> Self:
        """The shape of one member, without dims."""
        return cls((), Slice(0, (), ()))

    @property
    def extent(self) -> Extent:
        return Extent(self.labels, self.ndslice.sizes)

    @property
    def region(self) -> Shape:
        return self

    def ranks(self) -> tuple[int, ...]:
        """The base ranks of all members, in row-major order of this shape's dims."""
        return self.ndslice.ranks()

    def get(self, position: int) -> int:
        """The base rank of the member at this position (its rank within the shape)."""
        return self.ndslice.get(position)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates in this shape of a base rank; ValueError when the shape does not hold it."""
        return dict(zip(self.labels, self.ndslice.coordinates(rank), strict=True))

    def point(self, rank: int) -> Point:
        """The Point in this shape of a base rank; ValueError when the shape does not hold it."""
        return Point(self.ndslice.index(rank), self.extent)

    def at(self, label: str, position: int) -> Shape:
        """The shape at one coordinate of a dim, which is removed."""
        return self.slice(**{label: _integer(f"the index of dimension {label!r}", position)})

    def select(self, label: str, positions: Span) -> Shape:
        """The shape with a dim cut to a Python slice of it."""
        return self.slice(**{label: positions})

    def index(self, /, **coordinates: int) -> Shape:
        """The shape at these coordinates; the dims named are removed."""
        return self.slice(**{d: _integer(f"the index of dimension {d!r}", c) for d, c in coordinates.items()})

    def slice(self, /, **dims: Index) -> Shape:
        """See `MeshTrait.slice`."""
        for label in dims:
            if label not in self.labels:
                raise TypeError(_no_dim(label, self.labels))
        offset, kept = self.ndslice.offset, []
        for label, size, stride in self._dims():
            if label not in dims:
                kept.append((label, size, stride))
                continue
            start, length, step = _cut(label, size, dims[label])
            offset += start * stride
            if length is not None:
                kept.append((label, length, stride * step))
        return _shape(offset, kept)

    def split(self, /, **how: Sequence[str] | int) -> Shape:
        """See `MeshTrait.split`."""
        parts: dict[str, Sequence[str]] = {}
        given: dict[str, int] = {}
        for name, value in how.items():
            if isinstance(value, SupportsIndex):
                given[name] = _checked_size(name, value)
            elif name not in self.labels:
                raise TypeError(_no_dim(name, self.labels))
            elif isinstance(value, str) or not value:
                raise TypeError(f"dimension {name!r} is split into a tuple of names, not into {value!r}")
            else:
                parts[name] = value
        for name in given.keys() - {new for names in parts.values() for new in names}:
            raise TypeError(f"a size is given for {name!r}, which no dimension is split into")
        kept = []
        for label, size, stride in self._dims():
            names = parts.get(label, (label,))
            sizes = _factors(label, size, names, given) if label in parts else [size]
            for at, name in enumerate(names):
                kept.append((name, sizes[at], stride * prod(sizes[at + 1 :])))
        return _shape(self.ndslice.offset, kept)

    def flatten(self, name: str) -> Shape:
        """See `MeshTrait.flatten`."""
        wide = [(size, stride) for _, size, stride in self._dims() if size > 1]
        for (_, outer), (size, stride) in pairwise(wide):
            if outer != size * stride:
                raise ValueError(
                    f"cannot flatten {self.extent}: its members are not evenly spaced (strides "
                    f"{self.ndslice.strides}); flatten first, then slice"
                )
        return _shape(self.ndslice.offset, [(name, len(self), wide[-1][1] if wide else 1)])

    def rename(self, /, **names: str) -> Shape:
        """See `MeshTrait.rename`."""
        for label in names:
            if label not in self.labels:
                raise TypeError(_no_dim(label, self.labels))
        return Shape(tuple(names.get(label, label) for label in self.labels), self.ndslice)

    def _dims(self) -> Iterator[tuple[str, int, int]]:
        return zip(self.labels, self.ndslice.sizes, self.ndslice.strides, strict=True)

    def __contains__(self, rank: int) -> bool:
        return rank in self.ndslice

    def __len__(self) -> int:
        return len(self.ndslice)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ndslice)

    def __repr__(self) -> str:
        s = self.ndslice
        if s == Slice.new_row_major(s.sizes):
            return f"Shape({self.extent})"
        return f"Shape({self.extent}, offset={s.offset}, strides={s.strides})"


Region = Shape


def _shape(offset: int, dims: Sequence[tuple[str, int, int]]) -> Shape:
    sizes, strides = tuple(size for _, size, _ in dims), tuple(stride for _, _, stride in dims)
    return Shape(tuple(label for label, _, _ in dims), Slice(offset, sizes, strides))


def _cut(label: str, size: int, index: Index) -> tuple[int, int | None, int]:
    """Start, length (None: the dim goes) and step of an int or slice of a dim."""
    if isinstance(index, slice):
        start, stop, step = index.indices(size)
        if step < 1:
            raise ValueError(f"step {step} in dimension {label!r}: steps must be positive")
        if start >= stop:
            raise IndexError(f"{index} selects nothing of dimension {label!r}, which has size {size}")
        return start, len(range(start, stop, step)), step
    position = _integer(f"the index of dimension {label!r}", index)
    if not -size <= position < size:
        raise IndexError(f"index out of range: {position} in dimension {label!r}, which has size {size}")
    return position % size, None, 1


def _factors(label: str, size: int, names: Sequence[str], given: Mapping[str, int]) -> list[int]:
    """The sizes of the dims that a dim of this size is split into, at most one of them inferred."""
    unknown = [name for name in names if name not in given]
    known = prod(given[name] for name in names if name in given)
    if len(unknown) > 1:
        raise ValueError(f"{label!r} of size {size}: only one size may be left out of{_listing(unknown)}")
    if size % known or (not unknown and known != size):
        wanted = ", ".join(f"{name}={given[name]}" for name in names if name in given)
        raise ValueError(f"dimension {label!r} of size {size} cannot be split by {wanted}")
    return [given.get(name, size // known) for name in names]
