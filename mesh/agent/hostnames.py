"""The names that a host agent keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...actors.refs import ProcRef
from ..nametable import NameTable

if TYPE_CHECKING:
    from .agent import Agent


class HostNames(NameTable):
    """The names of detached meshes whose first host this is, and copies of those of others."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.node)
        self._agent = agent

    def refuses(self, refs: tuple[ProcRef, ...]) -> bool:
        """Only what is detached outlives the program that has named it."""
        return refs[0].proc_id not in self._agent.detached
