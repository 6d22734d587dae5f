"""Hosts that are still being attached to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from ..actors.future import Future
from .hostref import HostRef


class AttachedHosts(Sequence[HostRef]):
    """The hosts behind workers' addresses: known once all are attached, which whoever asks for one waits for."""

    def __init__(self, workers: Sequence[str | Future[str]], ready: Future[list[HostRef]]) -> None:
        self._workers = [worker if isinstance(worker, str) else "a worker" for worker in workers]
        self.ready = ready

    def __len__(self) -> int:
        return len(self._workers)

    @overload
    def __getitem__(self, index: int) -> HostRef: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HostRef]: ...
    def __getitem__(self, index: int | slice) -> HostRef | Sequence[HostRef]:
        return self.ready.get()[index]

    @property
    def known(self) -> bool:
        """Whether all are attached."""
        return self.ready.done() and self.ready.exception() is None

    def __repr__(self) -> str:
        state = "not attached" if self.ready.done() else "being attached"
        return f"{', '.join(self._workers[:4])}{', …' if len(self) > 4 else ''}: {'attached' if self.known else state}"

    def __reduce__(self) -> Any:
        return tuple, (list(self),)
