"""MeshTrait: the shape operations that all meshes share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .shape import Extent, Index, Shape


class MeshTrait:
    """The shape operations that all meshes share; each returns a mesh over the same members.

    A subclass holds `_shape` and gives `_with_shape`; its members are indexed by `_shape.ranks()`.
    `len` is the number of members.
    """

    __slots__ = ()

    _shape: Shape

    def _with_shape(self, shape: Shape) -> Self:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is reshaped")

    def slice(self, /, **dims: Index) -> Self:
        """Part of the mesh: an int removes its dim, a Python slice keeps it; both as in Python.

        Negative ints count from the end and slices are clipped; steps must be positive. Members, and
        so failures of those left out, are not touched. Raises TypeError for a dim that is not there,
        IndexError for an int out of range or a slice that selects nothing.

        >>> from roost.mesh import Extent, ValueMesh
        >>> mesh = ValueMesh(Extent.of(hosts=2, gpus=4), range(8))
        >>> mesh.slice(hosts=1, gpus=slice(0, None, 2)).values()
        [4, 6]
        """
        return self._with_shape(self._shape.slice(**dims))

    def split(self, /, **how: Sequence[str] | int) -> Self:
        """Dims split into several: a tuple names the new dims, outermost first, an int gives a size.

        One size of each split may be left out. Raises TypeError for a dim that is not there, ValueError
        where sizes do not divide or names repeat.

        >>> from roost.mesh import Extent, ValueMesh
        >>> ValueMesh(Extent.of(host=32), range(32)).split(host=("dp", "pp"), pp=16).extent
        {dp: 2, pp: 16}
        """
        return self._with_shape(self._shape.split(**how))

    def flatten(self, name: str) -> Self:
        """All dims made one, in rank order. Raises ValueError where slicing has left gaps between members.

        >>> from roost.mesh import Extent, ValueMesh
        >>> ValueMesh(Extent.of(hosts=2, gpus=4), range(8)).flatten("rank").extent
        {rank: 8}
        """
        return self._with_shape(self._shape.flatten(name))

    def rename(self, /, **names: str) -> Self:
        """Dims renamed in place: `rename(old="new")`. Raises TypeError for a dim that is not there."""
        return self._with_shape(self._shape.rename(**names))

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The size of a dim, the product over several, or (None) the number of members.

        Raises UnknownDim, a KeyError, for a dim that is not there.
        """
        if dim is None:
            return len(self._shape)
        extent = self._shape.extent
        return extent[dim] if isinstance(dim, str) else prod(extent[label] for label in dim)

    @property
    def sizes(self) -> dict[str, int]:
        """Each dim's size, in order."""
        return dict(self._shape.extent)

    @property
    def extent(self) -> Extent:
        """The dims and their sizes."""
        return self._shape.extent

    def __len__(self) -> int:
        return len(self._shape)
