"""The endpoints of a mesh: how its actors are called, together, in part, or one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..actors import bodies
from ..actors.calls import WANTS_ANSWER, MeshCall, OneCall, RankFuture, Sender, StreamCall, body_for
from ..actors.endpoint import EndpointDefinition
from ..actors.errors import ActorStopped
from ..actors.future import Future
from ..actors.node import SMALL_FRAME, Node, current_node
from ..actors.peer import Peer
from ..actors.wire import frame as f
from ..actors.wire import pickling, receivers
from ..actors.wire.receivers import pack_for
from .valuemesh import ValueMesh

if TYPE_CHECKING:
    from .actormesh import ActorMesh

P = ParamSpec("P")
R = TypeVar("R")


def running_node() -> Node:
    """This process's node; starts the controller's when there is none."""
    node = current_node()
    if node is None:
        from .local import ensure_runtime

        node = ensure_runtime().node
    return node


class MeshEndpoint(Generic[P, R]):
    """One endpoint of a mesh or slice. Arguments are checked here, against the signature, before anything is sent."""

    def __init__(self, mesh: ActorMesh, definition: EndpointDefinition[Any, Any]) -> None:
        self._mesh = mesh
        self._members = mesh._members
        self._definition = definition
        self._name = definition.name
        self._actor = mesh._members.actor_id
        extent = mesh.extent
        self._wire_shape = (list(extent.labels), list(extent.sizes)) if extent.labels else None
        self._about = f"{mesh._members.name}.{definition.name}"
        self._known: tuple[Node, list[Peer]] | None = None

    def __repr__(self) -> str:
        return f"<endpoint {self._about}{self._definition.signature} on {self._mesh.extent}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._about} is an endpoint of a mesh: write .{self._name}.call(...), .call_one(...), .choose(...), "
            f".stream(...) or .broadcast(...)"
        )

    def __reduce__(self) -> Any:
        return getattr, (self._mesh, self._name)

    def _peers(self, node: Node) -> list[Peer]:
        known = self._known
        if known is None or known[0] is not node:
            refs = self._members.refs
            known = self._known = (node, [node.peer_at(refs[rank]) for rank in self._mesh._shape.ranks()])
        return known[1]

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], only: int | None = None
    ) -> tuple[Node, list[Peer], pickling.Packed]:
        if self._members.stopped:
            raise ActorStopped(
                f"{self._about}: the mesh has been stopped: {self._members.stopped}", mesh_name=self._members.name
            )
        self._definition.check(args, kwargs)
        home = self._members.home
        if home is not None and home.closed:
            raise home.left()
        node = current_node() or running_node()
        peers = self._peers(node)
        if not receivers.wanted:
            return node, peers, pickling.pack((args, kwargs), "argument")
        chosen = peers if only is None else peers[only : only + 1]
        return node, peers, pack_for([peer.proc_id for peer in chosen], (args, kwargs), "argument")

    def _envelope(self, layout: Any, call: int, flags: int) -> bytes:
        envelope: bytes = f.packb([layout, self._actor, self._name, call, flags, self._wire_shape, None])
        return envelope

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the one actor of a mesh of one; ValueError for a larger mesh.

        >>> counters.slice(gpus=0).add.call_one(1).get()              # doctest: +SKIP
        7
        """
        node, peers, packed = self._begin(args, kwargs)
        if len(peers) != 1:
            raise ValueError(
                f"call_one is for a mesh of one, {self._members.name!r} has {len(peers)}: slice it, or use call"
            )
        return self._send_one(node, peers[0], 0, packed)

    def _send_one(self, node: Node, peer: Peer, rank: int, packed: pickling.Packed) -> Future[R]:
        call = OneCall(node, self._about, peer, rank)
        if not packed.buffers and not packed.definitions and len(packed.data) <= SMALL_FRAME:
            envelope = f.packb((None, self._actor, self._name, call.call_id, WANTS_ANSWER, self._wire_shape, None))
            Sender.small(node, call, peer, self._actor, rank, envelope, packed.data)
            return call
        body = body_for(node, packed, (peer,)) if packed.buffers else bodies.inline(packed)
        Sender.one(node, call, peer, self._actor, rank, self._envelope(body.layout, call.call_id, WANTS_ANSWER), body)
        return call

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor of the mesh, drawn at random."""
        rank = random.randrange(len(self._mesh))
        node, peers, packed = self._begin(args, kwargs, rank)
        return self._send_one(node, peers[rank], rank, packed)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor; the answers come as one ValueMesh in rank order.

        Fails at the first failure plus 50 ms in which further ones join; ranks still running are named and go on.

        >>> counters.add.call(1).get().item(gpus=1)                   # doctest: +SKIP
        8
        """
        node, peers, packed = self._begin(args, kwargs)
        extent = self._mesh.extent
        call = MeshCall(node, self._about, peers, lambda values: ValueMesh(extent, values))
        self._send_many(node, call, peers, packed, call.call_id, WANTS_ANSWER)
        return call

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Call every actor; a future for each, in the order in which the answers arrive.

        A future's `.rank` says whose answer it is, once it is done.
        """
        node, peers, packed = self._begin(args, kwargs)
        call = StreamCall(node, self._about, peers)
        self._send_many(node, call, peers, packed, call.call_id, WANTS_ANSWER)
        futures: list[RankFuture] = call.futures
        return iter(futures)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every actor and wait for nothing. An endpoint that raises then has nobody to tell: its actor fails."""
        node, peers, packed = self._begin(args, kwargs)
        self._send_many(node, None, peers, packed, 0, 0)

    def _send_many(
        self,
        node: Node,
        call: MeshCall | StreamCall | None,
        peers: list[Peer],
        packed: pickling.Packed,
        number: int,
        flags: int,
    ) -> None:
        Sender.many(
            node,
            call,
            list(zip(peers, range(len(peers)), strict=True)),
            self._actor,
            lambda layout: self._envelope(layout, number, flags),
            packed,
        )
