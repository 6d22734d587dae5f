"""Strided ranks without names: the index algebra beneath `Shape`.

Dims may not interleave: each stride is larger than all that the smaller ones can reach. Every slice and
split of a dense layout keeps this, and it makes base ranks unique and lets `coordinates` invert them by
division alone, so that membership of a rank in a slice of thousands costs a few divisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Self


@lru_cache(maxsize=256)
def _ranks(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    steps = (range(0, size * stride, stride) for size, stride in zip(sizes, strides, strict=True))
    return tuple(offset + sum(step) for step in product(*steps))


@dataclass(frozen=True, slots=True)
class Slice:
    """Strided ranks without names: the member at coordinates c has base rank `offset + sum(c * strides)`.

    Iterates over base ranks in row-major order; `rank in s` and `len(s)` take no enumeration.
    Raises ValueError for sizes or strides below 1, a negative offset, or dims that interleave.

    >>> s = Slice(offset=1, sizes=(2, 2), strides=(4, 2))
    >>> s.ranks(), s.get(2), s.index(5), s.coordinates(7), s.nditem((1, 1)), 4 in s
    ((1, 3, 5, 7), 5, 2, (1, 1), 7, False)
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "strides", tuple(self.strides))
        if len(self.sizes) != len(self.strides):
            raise ValueError(f"{len(self.sizes)} sizes {self.sizes} do not go with strides {self.strides}")
        if self.offset < 0 or any(n < 1 for n in (*self.sizes, *self.strides)):
            raise ValueError(f"offset must be at least 0, sizes and strides at least 1: {self}")
        reach = 0
        for dim in reversed(self._by_stride()):
            if self.strides[dim] <= reach:
                raise ValueError(f"dims interleave: stride {self.strides[dim]} <= reach {reach} in {self}")
            reach += self.strides[dim] * (self.sizes[dim] - 1)

    @classmethod
    def new_row_major(cls, sizes: Iterable[int]) -> Self:
        """The dense slice of these sizes, from base rank 0, last dim fastest."""
        shape = tuple(sizes)
        return cls(0, shape, tuple(prod(shape[dim + 1 :]) for dim in range(len(shape))))

    @classmethod
    def from_list(cls, ranks: Iterable[int]) -> list[Self]:
        """A short list of 1-dim slices that together hold exactly these ranks, ascending, repeats dropped.

        >>> [(s.offset, s.sizes, s.strides) for s in Slice.from_list([9, 0, 1, 2, 4, 6, 8])]
        [(0, (3,), (1,)), (4, (3,), (2,)), (9, (1,), (1,))]
        """
        left, found, at = sorted(set(ranks)), [], 0
        while at < len(left):
            step, end = (left[at + 1] - left[at] if at + 1 < len(left) else 1), at + 1
            while end < len(left) and left[end] - left[end - 1] == step:
                end += 1
            if end - at == 2 and step > 1:  # two far ranks are no run: the second may begin a longer one
                step, end = 1, at + 1
            found.append(cls(left[at], (end - at,), (step,)))
            at = end
        return found

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    def ranks(self) -> tuple[int, ...]:
        """All base ranks, in row-major order."""
        return _ranks(self.offset, self.sizes, self.strides)

    def get(self, position: int) -> int:
        """The base rank of the member at this row-major position; IndexError past the end."""
        if not 0 <= position < len(self):
            raise IndexError(f"no position {position} in a slice of {len(self)}")
        rank = self.offset
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            position, coordinate = divmod(position, size)
            rank += coordinate * stride
        return rank

    def nditem(self, coordinates: Sequence[int]) -> int:
        """The base rank at these coordinates, one for each dim; IndexError when out of range."""
        if len(coordinates) != self.ndim or not all(
            0 <= c < size for c, size in zip(coordinates, self.sizes, strict=True)
        ):
            raise IndexError(f"no coordinates {tuple(coordinates)} in sizes {self.sizes}")
        return self.offset + sum(c * stride for c, stride in zip(coordinates, self.strides, strict=True))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a base rank; ValueError when the slice does not hold it."""
        found = self._locate(rank)
        if found is None:
            raise ValueError(f"rank {rank} is not in {self}")
        return found

    def index(self, rank: int) -> int:
        """The row-major position of a base rank, the inverse of `get`; ValueError when not held."""
        position = 0
        for coordinate, size in zip(self.coordinates(rank), self.sizes, strict=True):
            position = position * size + coordinate
        return position

    def _by_stride(self) -> list[int]:
        """The dims with more than one member, largest stride first."""
        return sorted((d for d, n in enumerate(self.sizes) if n > 1), key=lambda d: -self.strides[d])

    def _locate(self, rank: int) -> tuple[int, ...] | None:
        left, found = rank - self.offset, [0] * self.ndim
        for dim in self._by_stride():
            found[dim], left = divmod(left, self.strides[dim])
            if not 0 <= found[dim] < self.sizes[dim]:
                return None
        return tuple(found) if left == 0 else None

    def __contains__(self, rank: int) -> bool:
        return self._locate(rank) is not None

    def __len__(self) -> int:
        return prod(self.sizes)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks())


NDSlice = Slice
