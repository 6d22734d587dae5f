"""What is shown of the output of processes, and where it stands in full."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..actors.future import Future
from ..actors.node import Node
from ..actors.refs import ProcRef
from ..actors.requests import request
from ..actors.routing import agent_ref
from .gather import all_of
from .shape import Extent
from .valuemesh import ValueMesh

WINDOW = 0.5  # seconds in which equal lines are shown as one


@dataclass(frozen=True, slots=True)
class LogFile:
    """Where a process's output stands: a path on its host. It is capped: of what is too much the middle goes."""

    host: str
    path: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of a mesh's output; see `ProcMesh.logging_option`."""

    stream: bool = True
    window: float | None = WINDOW
    level: int = logging.INFO
    ranks: Collection[int] | None = None
    regex: str | None = None

    def check(self, size: int) -> None:
        """Raise ValueError or TypeError, at the call, for what makes no sense."""
        if self.window is not None and not self.window > 0:
            raise ValueError(
                f"aggregate_window_sec is a time in seconds above 0, or None to fold nothing, not {self.window!r}"
            )
        if not isinstance(self.level, int):
            raise TypeError(f"level is a number such as logging.INFO, not {self.level!r}")
        wrong = sorted(rank for rank in self.ranks or () if not 0 <= rank < size)
        if wrong:
            raise ValueError(f"ranks={wrong} are not in a mesh of {size} processes")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f"regex={self.regex!r} is not a regular expression: {error}") from None


def by_agent(refs: Sequence[ProcRef]) -> dict[int, list[int]]:
    """The indices of processes by the agent that looks after them."""
    hosts: dict[int, list[int]] = {}
    for index, ref in enumerate(refs):
        hosts.setdefault(ref.agent_id, []).append(index)
    return hosts


def show(node: Node, refs: Sequence[ProcRef], shown: Shown) -> Future[None]:
    """Have the agents forward what is to be shown and nothing else; done when all of them do."""
    shown.check(len(refs))
    options = [shown.window, shown.level, shown.regex]
    futures: list[Future[object]] = []
    for indices in by_agent(refs).values():
        agent = node.peer_at(agent_ref(refs[indices[0]]))
        for silent in (False, True):
            ids = [
                refs[index].proc_id
                for index in indices
                if silent is not (shown.stream and (shown.ranks is None or index in shown.ranks))
            ]
            if ids:
                futures.append(request(node, agent, "output options", ids, silent, options))
    return all_of(futures)


def log_files(node: Node, refs: Sequence[ProcRef], extent: Extent) -> Future[ValueMesh[LogFile]]:
    """The files of these processes, as their agents know them."""
    groups = list(by_agent(refs).values())
    futures = [
        request(
            node,
            node.peer_at(agent_ref(refs[indices[0]])),
            "log files",
            [[refs[index].proc_id, refs[index].name] for index in indices],
        )
        for indices in groups
    ]

    def gather(answers: list[list[str]]) -> ValueMesh[LogFile]:
        found = {
            index: LogFile(refs[index].host, path)
            for indices, paths in zip(groups, answers, strict=True)
            for index, path in zip(indices, paths, strict=True)
        }
        return ValueMesh.from_indexed(extent, found.items())

    return all_of(futures, make=gather)
