"""Ranks as people write them."""

from __future__ import annotations

from collections.abc import Iterable


def spell(ranks: Iterable[int], *, between: str = ", ", most: int | None = None) -> str:
    """Ranks in few characters, ascending; at most `most` runs of them, the rest by number.

    >>> spell([9, 0, 1, 2, 5, 7, 8]), spell(range(0, 40, 2), most=3)
    ('0-2, 5, 7-9', '0, 2, 4 and 17 more')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = runs if most is None else runs[:most]
    left = sum(last - first + 1 for first, last in runs[len(told) :])
    return between.join(str(a) if a == b else f"{a}-{b}" for a, b in told) + (f" and {left} more" if left else "")
