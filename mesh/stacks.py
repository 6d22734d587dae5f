"""The stacks of processes anywhere in the job, asked for by any of its processes.

Two ways. A process that runs answers itself, on its I/O thread: threads, tasks, actors and endpoints by name. One that
does not answer within 0.3 s, because C code keeps the GIL or because it is stopped, is looked at by its agent: a signal
makes it write its stacks from C; py-spy is tried where that gave nothing and it is installed; a process that is stopped
or has ended gets a sentence that says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..actors.errors import RoostError
from ..actors.future import Future
from ..actors.node import Node, SystemHandler
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.requests import request
from ..actors.routing import agent_ref
from .snapshot import snapshot

PATIENCE = 0.3  # seconds until the agent of a silent process is asked
SHARE = 0.8  # of what is then left: the agent's time, so that its answer arrives before the end


class _Stacks(Future[dict[int, str]]):
    """The stacks of some processes; everything below `__init__` runs on the I/O thread."""

    __slots__ = ("_found", "_node", "_open", "_refs", "_timeout")

    def __init__(self, node: Node, refs: Sequence[ProcRef], timeout: float) -> None:
        super().__init__()
        self._node = node
        self._refs = refs
        self._timeout = timeout
        self._found: dict[int, str] = {}
        self._open: list[Future[object]] = []

    def _about(self) -> str:
        return f"stacks of {len(self._refs)} processes"

    def ask(self) -> None:
        """Ask each process, then the agents of those that say nothing, then give what there is."""
        loop = self._node.io.loop
        loop.call_later(min(PATIENCE, self._timeout / 2), self._ask_agents)
        loop.call_later(self._timeout, self._end)
        for index, ref in enumerate(self._refs):
            self._request(ref, [index], "stacks")
        self._step()

    def _request(self, where: ProcRef | Peer, indices: list[int], method: str, *arguments: object) -> None:
        future = request(self._node, where, method, *arguments)
        self._open.append(future)

        def answered() -> None:
            self._node.io.call(self._arrived, future, indices)

        if not future._when_done(answered):
            answered()

    def _arrived(self, future: Future[object], indices: list[int]) -> None:
        try:
            answer = future._result()
            texts = answer if isinstance(answer, list) else [answer]
        except RoostError as error:
            texts = [f"{self._refs[index].name}: {error}" for index in indices]
        for index, text in zip(indices, texts, strict=True):
            self._found.setdefault(index, str(text))
        self._step()

    def _step(self) -> None:
        if len(self._found) == len(self._refs):
            self._end()

    def _ask_agents(self) -> None:
        if self.done():
            return
        hosts: dict[int, list[int]] = {}
        for index, ref in enumerate(self._refs):
            if index not in self._found and ref.agent_id != ref.proc_id:
                hosts.setdefault(ref.agent_id, []).append(index)
        seconds = SHARE * (self._timeout - min(PATIENCE, self._timeout / 2))
        for indices in hosts.values():
            agent = self._node.peer_at(agent_ref(self._refs[indices[0]]))
            self._request(agent, indices, "dump stacks", [self._refs[index].proc_id for index in indices], seconds)

    def _end(self) -> None:
        if self.done():
            return
        for future in self._open:
            if not future.done():
                future.cancel("the time for stacks is over")
        for index, ref in enumerate(self._refs):
            silent = f"{ref.name} on {ref.host}: neither it nor its agent answered within {self._timeout:g} s"
            self._found.setdefault(index, silent)
        self.set_result(dict(sorted(self._found.items())))


def stacks_of(node: Node, refs: Sequence[ProcRef], timeout: float = 1.0) -> Future[dict[int, str]]:
    """The stacks of all threads and asyncio tasks of each process, as text, by its index in `refs`.

    Complete within `timeout` seconds whatever the processes do, and it never fails: of a process that could not be
    looked at the text says why, in a sentence. The home thread of each actor comes first, with the actor, its rank and
    the endpoint that runs; then tasks, each with the chain of its awaits; then other threads. Roost's own are left out.
    From any thread.

    >>> stacks_of(node, [ref]).get()[0].splitlines()[:4]                          # doctest: +SKIP
    ['trainer-3 (pid 4242 on hostX)',
     'actor trainer[3] (MainThread) runs step',
     '  File "train.py", line 31, in step',
     '    dist.all_reduce(grad)']
    """
    stacks = _Stacks(node, refs, timeout)
    node.io.call(stacks.ask)
    return stacks


async def _serve(node: Node, peer: Peer, arguments: list[object], body: object) -> str:
    """[]: the stacks of this process."""
    return await snapshot(node)


REQUESTS: dict[str, SystemHandler] = {"stacks": _serve}
"""What a process serves so that it can be asked."""
