"""The data plane's home in a Roost process: its node's identity, its control messages, its news of deaths."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.runtime import Runtime
from .lifecycle import shutdown


class NodeHome:
    """Implements `Home` on a runtime. Control messages are events of the node's ordered, acknowledged stream."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        node = runtime.node
        self.proc_id = node.proc_id
        self.node_id = node.node_id
        self.secret = node.secret
        self.host = _address(node.ref)
        runtime.events["rdma"] = self._received
        runtime.at_end.append(shutdown)

    def __repr__(self) -> str:
        return f"<NodeHome of {self._runtime.node.name} at {self.host}>"

    def on_process_death(self, proc_id: int, callback: Callable[[int], None]) -> None:
        """Call back once when the process is known dead; at once if it is."""
        node = self._runtime.node
        node.when_dead(proc_id, callback)
        node.vigil.ask(node.peer(proc_id))

    def tell(self, proc_id: int, kind: str, body: tuple[object, ...]) -> None:
        """Send one small message; lost when the process is gone."""
        node = self._runtime.node
        if proc_id not in node.peers:
            return  # its handle named no place, and it was never spoken to: there is no way to it
        node.event(
            node.peers[proc_id], "rdma", kind, [list(part) if isinstance(part, tuple) else part for part in body]
        )

    def place(self) -> tuple[object, ...] | None:
        """Where this process is, to travel in its handles."""
        ref = self._runtime.node.ref
        return tuple(ref.to_wire()) if ref is not None else None

    def learn(self, place: tuple[object, ...] | None) -> None:
        """Where the owner of a handle is."""
        if place is not None:
            self._runtime.node.peer_at(ProcRef.from_wire(list(place)))

    def _received(self, peer: Peer, kind: str, body: list[Any]) -> None:
        from .service import receive

        receive(peer.proc_id, kind, tuple(tuple(part) if isinstance(part, list) else part for part in body))


def _address(ref: ProcRef | None) -> str:
    """The address that other hosts reach this one's data server at: that of its agent."""
    if ref is not None and ref.agent_address.startswith("tcp://"):
        return ref.agent_address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return socket.gethostbyname(socket.gethostname())
