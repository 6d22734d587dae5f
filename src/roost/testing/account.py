"""The account of a simulation: what was called, what waits, who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..actors.calls import _Call
from ..actors.requests import Request
from .clock import Clock
from .lanes import DONE, Lane, Scheduler, describe
from .network import Network
from .watch import RUNNING, Call, Rule, Watch

if TYPE_CHECKING:
    from .world import Host, Process


class Account:
    """The part of a simulation that can be asked."""

    clock: Clock
    scheduler: Scheduler
    network: Network
    controller: Process
    watch: Watch
    all_hosts: list[Host]

    @property
    def calls(self) -> list[Call]:
        """Every call of an endpoint that has begun, in order."""
        return list(self.watch.calls)

    def history(self, endpoint: str) -> list[Call]:
        """The calls of one endpoint, "trainer.step"; * and ? match."""
        rule = Rule(endpoint, None)
        return [call for call in self.watch.calls if rule.meets(call)]

    def pending(self) -> list[str]:
        """The test's calls that have no answer yet."""
        return [
            call._about()
            for call in list(self.controller.node.pending.values())
            if isinstance(call, _Call) and not isinstance(call, Request) and not call.done()
        ]

    def statistics(self) -> dict[str, float]:
        """Counts, for eyes and tests."""
        processes = [process for process in self.network.processes.values() if process.node.role == "worker"]
        return {
            "seconds": self.clock.now,
            "hosts": len(self.all_hosts),
            "processes": len(processes),
            "ended": sum(process.report is not None for process in processes),
            "actors": sum(len(process.node.cells) for process in processes if process.report is None),
            "calls": len(self.watch.calls),
            "frames": self.network.frames,
            "dropped": self.network.dropped,
            "switches": self.scheduler.switches,
            "jumps": self.scheduler.jumps,
        }

    def explain(self) -> str:
        """Who waits for whom, a line each."""
        lines = []
        if self.scheduler.client.state != DONE:
            lines.append(f"  the test waits for {self._waits(self.scheduler.client)}")
        for process in list(self.network.processes.values()):
            if process.report is not None:
                continue
            for call in self.watch.calls:
                if call.process is process and call.outcome == RUNNING:
                    lines.append(f"  {call.name}[{call.rank}], called by {call.sender}, {self._waiting(process)}")
            for cell in list(process.node.cells.values()):
                waiting = cell.statistics().get("waiting", 0)
                if waiting:
                    lines.append(f"  {cell.name}[{cell.rank}] has {waiting} more in its mailbox")
        return "\n".join(lines)

    def _waits(self, lane: Lane) -> str:
        pending = self.pending() if lane is self.scheduler.client else []
        text = describe(lane.about)
        return f"{', '.join(pending)}" if text == "its event loop" and pending else text

    def _waiting(self, process: Process) -> str:
        abouts = [call._about() for call in list(process.node.pending.values()) if not call.done()]
        held = [describe(lane.about) for lane in process.lanes if lane.about is not None]
        found = abouts or [text for text in held if text not in ("its event loop", "Cell")]
        return f"waits for {', '.join(dict.fromkeys(found)) or 'something of its own'}"
