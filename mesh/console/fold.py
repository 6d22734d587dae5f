"""What is shown of many processes' lines, and when: pure decisions, no clock and no output of its own.

The first of several equal lines is shown at once. Those that follow within the window, from whatever rank of the mesh,
are held and shown as one when the window has passed:

    0.00  [trainer-3] NCCL version 2.21          shown as it comes
    0.01  the same of ranks 0-2 and 4-7          held
    0.51  [trainer 0-2,4-7] NCCL version 2.21

A rank's lines are shown in the order in which it wrote them: a line that comes after one that is held waits with it,
or, where the held ones are that rank's alone, sends them ahead. Numbers in lines count: `step 1` and `step 2` differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...actors.ranks import spell

MOST = 200  # entries held for one mesh; then they are shown before the window has passed
MESHES = 64  # after which quiet ones are forgotten
REMEMBERED = 1000  # lines of one mesh that are known to have been shown


@dataclass(slots=True)
class _Held:
    """A line that waits: how often each rank wrote it."""

    text: str
    counts: dict[int, int] = field(default_factory=dict)

    def line(self, mesh: str) -> str:
        """What is shown of it."""
        total = sum(self.counts.values())
        repeated = f" (repeated {total} times)" if total > len(self.counts) else ""
        return f"{prefix(mesh, self.counts)} {self.text}{repeated}"


@dataclass(slots=True)
class _Mesh:
    """The lines of one mesh: held ones by age, the newest of each text, and where each rank is."""

    shown: dict[str, float] = field(default_factory=dict)  # until when an equal line is held
    held: dict[int, _Held] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    due: float = 0.0
    window: float = 0.0
    serial: int = 0


def prefix(mesh: str, ranks: Iterable[int]) -> str:
    """Whose a line is.

    >>> prefix("trainer", [3]), prefix("trainer", [0, 1, 2, 5])
    ('[trainer-3]', '[trainer 0-2,5]')
    """
    ordered = sorted(ranks)
    return f"[{mesh}-{ordered[0]}]" if len(ordered) == 1 else f"[{mesh} {spell(ordered, between=',')}]"


class Folder:
    """Folds the lines of meshes. Times are seconds of any clock that does not go back.

    >>> folder = Folder()
    >>> [folder.feed(0.1 * rank, "t", rank, "ready", 0.5) for rank in range(4)]
    [['[t-0] ready'], [], [], []]
    >>> folder.flush(0.5), folder.flush(0.6)
    ([], ['[t 1-3] ready'])
    """

    def __init__(self) -> None:
        self._meshes: dict[str, _Mesh] = {}

    def __repr__(self) -> str:
        held = sum(len(state.held) for state in self._meshes.values())
        return f"<Folder of {', '.join(self._meshes) or 'nothing'}: {held} held>"

    def feed(self, time: float, mesh: str, rank: int, text: str, window: float | None) -> list[str]:
        """A line was written; gives the lines to show now. A `window` of None or 0 folds nothing."""
        state = self._meshes.get(mesh)
        if state is None:
            self._forget_quiet(time)
            state = self._meshes[mesh] = _Mesh()
        if not window:
            return [*self._release(state, mesh, time), f"{prefix(mesh, (rank,))} {text}"]
        state.window = window
        shown = (
            self._release(state, mesh, time) if state.held and (time >= state.due or len(state.held) >= MOST) else []
        )
        newest = state.newest.get(text)
        at = state.last.get(rank)
        if newest is not None and (at is None or newest >= at):
            self._hold(state, newest, rank)
            return shown
        fresh = state.shown.get(text, time) <= time
        if fresh and at is not None and self._alone(state, rank):
            shown += self._release_of(state, mesh, rank, time + window)
            at = None
        if fresh and at is None:
            self._remember(state, text, time + window)
            shown.append(f"{prefix(mesh, (rank,))} {text}")
            return shown
        if not state.held:
            state.due = time + window
        state.serial += 1
        state.held[state.serial] = _Held(text)
        state.newest[text] = state.serial
        self._hold(state, state.serial, rank)
        return shown

    def flush(self, time: float, *, everything: bool = False) -> list[str]:
        """The lines whose window has passed, or all that are held."""
        shown: list[str] = []
        for mesh, state in self._meshes.items():
            if state.held and (everything or time >= state.due):
                shown += self._release(state, mesh, time)
        return shown

    def due(self) -> float | None:
        """When `flush` will have something to show; None when nothing is held."""
        return min((state.due for state in self._meshes.values() if state.held), default=None)

    def _forget_quiet(self, time: float) -> None:
        """Meshes come and go: keep what still matters."""
        if len(self._meshes) >= MESHES:
            for mesh, state in list(self._meshes.items()):
                if not state.held and all(until <= time for until in state.shown.values()):
                    del self._meshes[mesh]

    @staticmethod
    def _hold(state: _Mesh, serial: int, rank: int) -> None:
        counts = state.held[serial].counts
        counts[rank] = counts.get(rank, 0) + 1
        state.last[rank] = serial

    @staticmethod
    def _alone(state: _Mesh, rank: int) -> bool:
        """Whether what is held of a rank is held of no other."""
        return all(len(held.counts) == 1 for held in state.held.values() if rank in held.counts)

    def _release(self, state: _Mesh, mesh: str, time: float) -> list[str]:
        """Everything that is held; equal lines are held again within the next window."""
        shown = []
        for held in state.held.values():
            self._remember(state, held.text, time + state.window)
            shown.append(held.line(mesh))
        state.held.clear()
        state.newest.clear()
        state.last.clear()
        return shown

    def _release_of(self, state: _Mesh, mesh: str, rank: int, until: float) -> list[str]:
        """What is held of one rank alone."""
        shown = []
        for serial in [serial for serial, held in state.held.items() if rank in held.counts]:
            held = state.held.pop(serial)
            if state.newest.get(held.text) == serial:
                del state.newest[held.text]
            self._remember(state, held.text, until)
            shown.append(held.line(mesh))
        state.last.pop(rank, None)
        return shown

    @staticmethod
    def _remember(state: _Mesh, text: str, until: float) -> None:
        state.shown.pop(text, None)
        state.shown[text] = until
        while len(state.shown) > REMEMBERED:
            del state.shown[next(iter(state.shown))]
