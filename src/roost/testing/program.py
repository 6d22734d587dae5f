"""What the program's own controller offers, as far as a simulation has it: hosts, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..mesh.hostref import HostRef
from .errors import SimulationError

if TYPE_CHECKING:
    from .simulation import Simulation
    from .world import Host


class SimAgent:
    """Stands in for a host agent that a job has started."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.host = host.ref

    def __repr__(self) -> str:
        return f"<agent of {self._host.name}, simulated>"

    def end(self, timeout: float = 8.0) -> None:
        """End all that runs on the host."""
        for process in self._host.live():
            self._host.stopping[process.proc_id] = "its host agent ends"
            process.exit()


class Program:
    """Stands in for `Controller`: jobs ask it for hosts."""

    agents: tuple[Any, ...] = ()

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.node = sim.controller.node
        self.runtime = sim.controller.runtime
        self.homes = sim.controller.homes
        self.node_id = self.node.node_id

    def __repr__(self) -> str:
        return f"<Program of {self._sim!r}>"

    def __getattr__(self, name: str) -> Any:
        raise SimulationError(f"a simulation has no {name!r} of the controller: test that with real processes")

    def local_host(self) -> HostRef:
        """The host that the program runs on."""
        return self._sim.controller.host.ref

    def start_agent(self, node_id: str, listen: list[str], name: str = "", host: str | None = None) -> SimAgent:
        """A new host, as jobs ask for it."""
        return SimAgent(self._sim.add_host(host))

    def close(self) -> None:
        """End everything that was spawned."""
        self._sim.shutdown()
