"""Trouble: what a test has happen to processes, calls and hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..mesh.actormesh import ActorMesh
from ..mesh.hostmesh import HostMesh
from ..mesh.procmesh import ProcMesh
from .clock import Clock
from .loops import LaneLoop
from .network import Network
from .watch import Rule, Watch, ranks_of

if TYPE_CHECKING:
    from .world import Host, Process

OOM = "the kernel's out-of-memory killer ended it (simulated)"


class Trouble:
    """The part of a simulation that makes trouble."""

    clock: Clock
    loop: LaneLoop
    network: Network
    controller: Process
    watch: Watch
    all_hosts: list[Host]

    def kill(
        self,
        mesh: ProcMesh | ActorMesh | Any,
        ranks: int | Iterable[int] | None = None,
        *,
        how: str | int = "SIGKILL",
        at: float | None = None,
        when: str | None = None,
        call: int = 1,
        where: str = "before",
    ) -> None:
        """End processes of a mesh, or the processes of its actors, without a warning to anybody.

        Args:
            ranks: within `mesh`; None is all of them.
            how: a signal ("SIGSEGV"), an exit code, or "oom": killed for memory, with the evidence.
            at: the virtual time; now if neither `at` nor `when` is given.
            when: an endpoint, "trainer.step": at its `call`-th call on such a rank, counted from 1 …
            where: … "before" its first line, "during" (where it first waits, at the latest at its end), or "after"
                it has run and before its answer leaves.
        """
        if where not in ("before", "during", "after"):
            raise ValueError(f'where is "before", "during" or "after", not {where!r}')
        processes = self._processes(mesh, ranks)
        if when is not None:
            self.watch.rules += [
                Rule(
                    when, None, p.proc_id, kill=lambda doomed: self._end_process(doomed, how), where=where, at_call=call
                )
                for p in processes
            ]
        elif at is not None:
            for process in processes:
                self.controller.node.io.call(self.loop.call_at, at, self._end_process, process, how)
        else:
            for process in processes:
                self._end_process(process, how)

    def _end_process(self, process: Process, how: str | int) -> None:
        if process.report is None:
            self.watch.died(process)
            if isinstance(how, int):
                process.exit(code=how)
            elif how == "oom":
                process.exit(signal="SIGKILL", oom=OOM)
            else:
                process.exit(signal=how)

    def _processes(self, mesh: Any, ranks: int | Iterable[int] | None) -> list[Process]:
        if isinstance(mesh, ProcMesh):
            refs = mesh._members()
        elif isinstance(mesh, ActorMesh):
            refs = [mesh._members.refs[rank] for rank in mesh._shape.ranks()]
        else:
            raise TypeError(f"a ProcMesh or an ActorMesh can be killed, not {mesh!r}")
        if any(ref.proc_id == self.controller.proc_id for ref in refs):
            raise ValueError("the test's own process cannot be killed: spawn the actors on processes of their own")
        wanted = ranks_of(ranks)
        if wanted is not None and not wanted <= set(range(len(refs))):
            raise IndexError(f"ranks {sorted(wanted)} of a mesh of {len(refs)}")
        self.clock.settle()  # what was spawned is there
        return [
            self.network.processes[ref.proc_id]
            for rank, ref in enumerate(refs)
            if (wanted is None or rank in wanted) and ref.proc_id in self.network.processes
        ]

    def delay(self, endpoint: str, seconds: float, ranks: int | Iterable[int] | None = None) -> None:
        """From now on calls of an endpoint ("trainer.step"; * and ? match) take `seconds` longer."""
        self.watch.rules.append(Rule(endpoint, ranks_of(ranks), seconds=seconds))

    def fail(
        self,
        endpoint: str,
        error: BaseException,
        *,
        times: int | None = 1,
        call: int = 0,
        ranks: int | Iterable[int] | None = None,
    ) -> None:
        """The next `times` calls of an endpoint (None: all), or only the `call`-th of a rank, raise `error`."""
        self.watch.rules.append(Rule(endpoint, ranks_of(ranks), error=error, times=times, at_call=call))

    def partition(self, host: str | HostMesh) -> None:
        """Nothing passes between these hosts and all others until `heal`; what is sent meanwhile waits.

        Who waits for such a host gets `Unreachable` when the link timeout has passed (30 s, or `link_timeout`).
        """
        for name in self._host_names(host):
            self.network.cut(name)

    def heal(self, host: str | HostMesh | None = None) -> None:
        """Frames pass again, all that wait first; None heals every host."""
        names = set(self.network.cut_off) if host is None else set(self._host_names(host))
        self.network.cut_off -= names

    def _host_names(self, host: str | HostMesh) -> list[str]:
        known = [each.name for each in self.all_hosts]
        names = [host] if isinstance(host, str) else [host._hosts[rank].host for rank in host._shape.ranks()]
        for name in names:
            if name not in known:
                raise ValueError(f"there is no host {name!r}; there are {', '.join(known)}")
        return names
