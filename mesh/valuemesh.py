"""ValueMesh: one value for each member of a mesh, as a call on a mesh returns it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from .shape import Extent, MeshTrait, Point, Shape

R = TypeVar("R", covariant=True)
S = TypeVar("S")

_SHOWN = 16  # members in a repr
_SHOWN_HTML = 32
_VALUE_WIDTH = 200  # characters of one value in a repr


class ValueMesh(MeshTrait, Generic[R]):
    """Values in row-major order of an extent's dims, immutable; sliced like any mesh, without copying.

    Iterates over (Point, value) in rank order. Ranks are those within this mesh: 0 to `len` - 1. Equal to
    another ValueMesh of the same extent with equal values. In a pickle, runs of one value are stored once.

    Raises ValueError when there are more or fewer values than members.

    >>> from roost.mesh.shape import Extent
    >>> losses = ValueMesh(Extent.of(hosts=2, gpus=2), [0.5, 0.25, 0.5, 1.0])
    >>> losses.slice(gpus=1)
    ValueMesh({hosts: 2}):
      (({'hosts': 0/2}, 0.25), ({'hosts': 1/2}, 1.0))
    >>> losses.item(hosts=1, gpus=0), losses.get(3), losses.map(lambda x: x * 4).values()
    (0.5, 1.0, [2.0, 1.0, 2.0, 4.0])
    """

    __slots__ = ("_shape", "_table")

    def __init__(self, shape: Shape | Extent, values: Iterable[R]) -> None:
        # The table is shared by all slices and indexed by their base ranks; a strided shape given here says
        # where the members stood in another table, and is made dense.
        self._shape = _extent(shape).region
        self._table: list[R | _Thunk[R]] = list(values)
        if len(self._table) != len(self._shape):
            raise ValueError(f"{len(self._table)} values for the {len(self._shape)} members of {self._shape.extent}")

    @classmethod
    def from_indexed(cls, shape: Shape | Extent, indexed: Iterable[tuple[int, R]]) -> Self:
        """A mesh from (rank, value) pairs in any order; the last value of a rank counts.

        Raises IndexError for a rank that the extent does not have, ValueError naming ranks without a value.

        >>> ValueMesh.from_indexed(Extent.of(gpus=2), [(1, "b"), (0, "x"), (0, "a")]).values()
        ['a', 'b']
        """
        extent = _extent(shape)
        found = dict(indexed)
        for rank in found:
            Point(rank, extent)
        missing = [rank for rank in range(extent.nelements) if rank not in found]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            ranks = ", ".join(map(str, missing[:_SHOWN])) + more
            raise ValueError(f"no value for rank{'s' if len(missing) > 1 else ''} {ranks} of {extent}")
        return cls(extent, (found[rank] for rank in range(extent.nelements)))

    @classmethod
    def _lazy(cls, shape: Shape | Extent, thunks: Iterable[Callable[[], R]]) -> Self:
        """A mesh whose values are made when first asked for; a thunk that raises is tried again next time."""
        mesh = cls.__new__(cls)
        ValueMesh.__init__(mesh, shape, cast("Iterable[R]", map(_Thunk, thunks)))
        return mesh

    def _with_shape(self, shape: Shape) -> Self:
        mesh = type(self).__new__(type(self))
        mesh._shape, mesh._table = shape, self._table
        return mesh

    def get(self, rank: int) -> R:
        """The value of a rank of this mesh. Raises IndexError when there is none."""
        return self._at(self._shape.get(rank))

    def item(self, /, **coordinates: int) -> R:
        """The value at these coordinates; dims of size 1 need not be named.

        Raises TypeError for a dim that is not there, IndexError for a coordinate out of range, ValueError
        when the coordinates leave more than one value.
        """
        left = self._shape.index(**coordinates)
        if len(left) > 1:
            raise ValueError(f"item() takes one value of {self.extent}; still to be chosen: {left.extent}")
        return self._at(left.get(0))

    def values(self) -> list[R]:
        """All values, in rank order."""
        return [self._at(base) for base in self._shape.ranks()]

    def items(self) -> Iterator[tuple[Point, R]]:
        """(Point, value) for each member, in rank order."""
        return zip(self.extent.points(), map(self._at, self._shape.ranks()), strict=True)

    def map(self, fn: Callable[[R], S]) -> ValueMesh[S]:
        """The mesh of `fn(value)`, called once for each member in rank order."""
        return ValueMesh(self.extent, map(fn, self.values()))

    def zip(self, *others: ValueMesh[Any]) -> ValueMesh[tuple[Any, ...]]:
        """The mesh of tuples of the values of one member. Raises ValueError for meshes of another extent.

        >>> from roost.mesh.shape import Extent
        >>> ValueMesh(Extent.of(gpus=2), "ab").zip(ValueMesh(Extent.of(gpus=2), [1, 2])).values()
        [('a', 1), ('b', 2)]
        """
        for other in others:
            if other.extent != self.extent:
                raise ValueError(f"a mesh of {other.extent} cannot be zipped with one of {self.extent}")
        return ValueMesh(self.extent, zip(self.values(), *(other.values() for other in others), strict=True))

    def _at(self, base: int) -> R:
        value = self._table[base]
        if isinstance(value, _Thunk):
            made: R = value.make()
            self._table[base] = made
            return made
        return value

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        return self.extent == other.extent and self.values() == other.values()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        counts: list[int] = []
        values: list[R] = []
        for value in self.values():
            if values and _same(values[-1], value):
                counts[-1] += 1
            else:
                counts.append(1)
                values.append(value)
        packed = counts if len(counts) < len(self) else None
        return _unpickle, (type(self), self.extent.labels, self.extent.sizes, values, packed)

    def __repr__(self) -> str:
        shown = [f"({point!r}, {_brief(self.get(point.rank))})" for point in _first(self.extent, _SHOWN)]
        if len(self) > _SHOWN:
            shown.append(f"... {len(self) - _SHOWN} more")
        comma = "," if len(self) == 1 else ""
        return f"ValueMesh({self.extent}):\n  ({', '.join(shown)}{comma})"

    def _repr_html_(self) -> str:
        import html  # its table of entities is for notebooks alone

        labels = self.extent.labels
        head = "".join(f"<th>{label}</th>" for label in (*labels, "value"))
        rows = [
            "".join(f"<td>{point[label]}</td>" for label in labels)
            + f"<td>{html.escape(_brief(self.get(point.rank)))}</td>"
            for point in _first(self.extent, _SHOWN_HTML)
        ]
        if len(self) > len(rows):
            rows.append(f'<td colspan="{len(labels) + 1}">{len(self) - len(rows)} more</td>')
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f"<table><caption>ValueMesh {self.extent}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


class _Thunk(Generic[R]):
    __slots__ = ("make",)

    def __init__(self, make: Callable[[], R]) -> None:
        self.make = make


def _extent(shape: Shape | Extent) -> Extent:
    return shape.extent if isinstance(shape, Shape) else shape


def _first(extent: Extent, n: int) -> Iterator[Point]:
    return (Point(rank, extent) for rank in range(min(n, extent.nelements)))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 3]}..."


def _same(a: object, b: object) -> bool:
    """Whether one may stand for the other: the same object, or equal constants of the same type.

    Only of types whose comparison is cheap and certain; a float zero has a sign that `==` does not see.
    """
    if a is b:
        return True
    if type(a) is not type(b) or type(a) not in (int, str, bytes, float):
        return False
    return a == b and not (type(a) is float and a == 0.0)


def _unpickle(
    cls: type[ValueMesh[S]],
    labels: tuple[str, ...],
    sizes: tuple[int, ...],
    values: list[S],
    counts: list[int] | None,
) -> ValueMesh[S]:
    if counts is not None:
        values = [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
    mesh = cls.__new__(cls)
    ValueMesh.__init__(mesh, Extent(labels, sizes), values)
    return mesh
