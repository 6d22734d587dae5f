"""Workers' output in a notebook: in the cell that caused it, also when another one runs by then.

A process writes for the cell whose call it is working on: calls are numbered, and each cell knows the number of its
first. What arrives just after the answer belongs to that cell too. A process that works on no call of this program's,
such as one whose actors are called by other actors, writes for the cell that ran last. At the end of a cell what its
calls have written is fetched before the next one begins.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from ...actors.calls import _next_call
from ...actors.errors import RoostError
from ...actors.node import Node
from ...actors.refs import ProcRef
from ...actors.requests import Request, request
from .screen import Screen

REMEMBERED = 1000  # cells
LOOKED_AT = 1000  # calls without an answer
FETCH = 0.25  # seconds that the end of a cell may wait for output


class NotebookScreen(Screen):
    """The cells' outputs: stream messages of the kernel, each with the cell's message as its parent."""

    def write(self, text: str, cell: Any) -> None:
        """Write to the output of a cell."""
        stream: Any = sys.stdout
        if not text:
            return
        if cell is None or not hasattr(stream, "pub_thread"):  # the user has put another one in its place
            stream.write(text)
            stream.flush()
            return
        message = stream.session.msg("stream", {"name": "stdout", "text": text}, parent=cell)
        stream.pub_thread.schedule(lambda: stream.session.send(stream.pub_thread, message, ident=stream.topic))


class NotebookCells:
    """The cells of a kernel, by the number of their first call."""

    def __init__(self, shell: Any, node: Node, agents: Callable[[], Sequence[ProcRef]]) -> None:
        self._shell = shell
        self._node = node
        self._agents = agents
        self.flush: Callable[[float], object] = lambda timeout: None  # shows what has arrived
        self._lock = threading.Lock()
        self._first: list[int] = []
        self._parents: list[Any] = []
        self._left: dict[int, tuple[Any, int]] = {}  # by process that worked on a call when the cell began: of which
        self.begin()
        shell.events.register("pre_run_cell", self.begin)
        shell.events.register("post_run_cell", self.end)

    def begin(self, info: Any = None) -> None:
        """A cell begins: calls from now on are its own."""
        parent = self._shell.kernel.get_parent("shell")
        left = {proc_id: (self._at(call), self._sent(proc_id)) for proc_id, call in self._unanswered().items()}
        with self._lock:
            self._left = left
            self._first.append(_next_call())
            self._parents.append(parent)
            if len(self._first) > REMEMBERED:
                del self._first[0], self._parents[0]

    def end(self, result: Any = None) -> None:
        """A cell ends: fetch what its calls have written."""
        for fetch in [request(self._node, agent, "flush output") for agent in self._agents()]:
            try:
                fetch.get(FETCH)
            except (RoostError, TimeoutError):
                continue  # an agent that has ended or is stopped: what it says later comes later
        self.flush(FETCH)

    def close(self) -> None:
        """Look at cells no more."""
        self._shell.events.unregister("pre_run_cell", self.begin)
        self._shell.events.unregister("post_run_cell", self.end)

    def of(self, proc_id: int) -> Any:
        """The message that began the cell which has caused what this process writes."""
        call = self._unanswered(proc_id).get(proc_id)
        if call is not None:
            return self._at(call)
        with self._lock:
            left = self._left.get(proc_id)
            return left[0] if left is not None and left[1] == self._sent(proc_id) else self._parents[-1]

    def _at(self, call: int) -> Any:
        with self._lock:
            return self._parents[max(bisect_right(self._first, call) - 1, 0)]

    def _unanswered(self, only: int | None = None) -> dict[int, int]:
        """By process, or for one: the number of its last call that it has not answered."""
        found: dict[int, int] = {}
        for call in list(self._node.pending.values())[: -LOOKED_AT - 1 : -1]:
            if isinstance(call, Request):
                continue
            for peer in call._unanswered():
                if only is None or peer.proc_id == only:
                    found.setdefault(peer.proc_id, call.call_id)
            if only in found:
                break
        return found

    def _sent(self, proc_id: int) -> int:
        """How much this program has sent to a process."""
        peer = self._node.peers.get(proc_id)
        return peer.outbox.next_seq if peer is not None else 0
