"""HostRef: where a host's agent is, and where its processes listen."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..actors.refs import ProcRef


@dataclass(frozen=True, slots=True)
class HostRef:
    """A host: its agent, and where its processes listen."""

    node_id: str
    host: str
    agent_id: int
    agent_address: str  # for other hosts
    run_dir: str

    @classmethod
    def of_process(cls, ref: ProcRef) -> HostRef:
        """The host that a process runs on."""
        return cls(
            ref.node_id, ref.host, ref.agent_id, ref.agent_address, os.path.dirname(ref.address.removeprefix("unix://"))
        )

    def process(self, proc_id: int, name: str) -> ProcRef:
        """Where a process with this number will be."""
        return ProcRef(
            proc_id,
            name,
            self.node_id,
            self.host,
            f"unix://{self.run_dir}/{proc_id:x}.sock",
            self.agent_id,
            self.agent_address,
        )

    def agent(self) -> ProcRef:
        """Where the agent is."""
        address = f"unix://{self.run_dir}/{self.agent_id:x}.sock"
        return ProcRef(
            self.agent_id,
            f"agent of {self.host}",
            self.node_id,
            self.host,
            address,
            self.agent_id,
            self.agent_address,
            0,
        )
