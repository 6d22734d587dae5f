"""ActorMesh: one actor on each process of a mesh, called together, in part, or one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from ..actors import bodies
from ..actors.calls import (
    WANTS_ANSWER,
    MeshCall,
    OneCall,
    RankFuture,
    Sender,
    StreamCall,
    body_for,
    request,
)
from ..actors.endpoint import EndpointDefinition, endpoints_of
from ..actors.errors import ActorStopped, RoostError
from ..actors.future import Future
from ..actors.node import SMALL_FRAME, Node, current_node
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.wire import frame as f
from ..actors.wire import pickling, receivers
from ..actors.wire.receivers import pack_for
from .gather import all_of
from .shape import MeshTrait, Shape
from .valuemesh import ValueMesh

P = ParamSpec("P")
R = TypeVar("R")

STOP_TIMEOUT = 10.0


class Members:
    """What all slices of one actor mesh share: who the members are, and whether they have been stopped."""

    __slots__ = ("actor_id", "cls", "definitions", "home", "name", "owned", "refs", "started", "stopped")

    def __init__(self, name: str, actor_id: int, cls: type, refs: Sequence[ProcRef]) -> None:
        self.name = name
        self.actor_id = actor_id
        self.cls = cls
        self.refs = tuple(refs)
        self.definitions = endpoints_of(cls)
        self.stopped = ""
        self.started: Future[Any] = Future.completed(True)
        self.owned: Any = None
        self.home: Node | None = None  # of the process that spawned it

    def __reduce__(self) -> Any:
        return Members, (self.name, self.actor_id, self.cls, self.refs)

    def __repr__(self) -> str:
        return f"<{len(self.refs)} members of {self.name}>"


class ActorMesh(MeshTrait):
    """Actors of one class on the processes of a mesh. Endpoints are its attributes.

    Slices share their members: `mesh.slice(gpus=0)` calls the same actor. A mesh can be sent in messages; whoever
    gets it can call it. Made by `ProcMesh.spawn`.

    >>> from roost.mesh import this_host
    >>> procs = this_host().spawn_procs({"gpus": 2})                  # doctest: +SKIP
    >>> counters = procs.spawn("counter", Counter, 5)                 # doctest: +SKIP
    >>> counters.add.call(1).get().values()                           # doctest: +SKIP
    [6, 6]
    """

    def __init__(self, members: Members, shape: Shape) -> None:
        self._members = members
        self._shape = shape

    def _with_shape(self, shape: Shape) -> ActorMesh:
        return ActorMesh(self._members, shape)

    def __repr__(self) -> str:
        members = self._members
        state = f", stopped: {members.stopped}" if members.stopped else ""
        return f"<ActorMesh {members.name!r} of {members.cls.__qualname__}, {self.extent}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(repr(self))}</code>"

    def __reduce__(self) -> Any:
        return ActorMesh, (self._members, self._shape)

    @property
    def name(self) -> str:
        """The name it was spawned under."""
        return self._members.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        members = self.__dict__.get("_members")
        if members is None:
            raise AttributeError(name)
        definition = members.definitions.get(name)
        if definition is None:
            raise AttributeError(_no_endpoint(members, name))
        found: MeshEndpoint[Any, Any] = MeshEndpoint(self, definition)
        self.__dict__[name] = found
        return found

    @property
    def initialized(self) -> Future[bool]:
        """Done when every `__init__` has returned; fails with the first that raised."""
        return self._members.started

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the actors after the messages that wait, meshes they spawned first. Starts at once."""
        members = self._members
        node = running_node()
        if members.stopped:
            return Future.completed(None)
        members.stopped = reason
        if members.owned is not None:
            members.owned.stopping = reason
        futures = [request(node, ref, "stop actor", members.actor_id, reason, STOP_TIMEOUT) for ref in members.refs]
        return all_of(futures, ignore=(RoostError,))


def _no_endpoint(members: Members, name: str) -> str:
    cls = members.cls
    if callable(getattr(cls, name, None)):
        return f"{cls.__qualname__}.{name} is a method but no endpoint: put @endpoint on it"
    known = ", ".join(f"{n}{d.signature}" for n, d in sorted(members.definitions.items()))
    return f"{cls.__qualname__} (mesh {members.name!r}) has no endpoint {name!r}; it has {known or 'none'}"


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
