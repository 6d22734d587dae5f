"""The endpoints of a mesh: how its actors are called, together, in part, or one by one."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..actors import bodies
from ..actors.calls import NO_VALUE, WANTS_ANSWER, WANTS_ITEMS, MeshCall, OneCall
from ..actors.context import serving
from ..actors.endpoint import EndpointDefinition
from ..actors.errors import ActorStopped
from ..actors.future import Future
from ..actors.mailbox import narrow
from ..actors.node import SMALL_FRAME, Node, current_node
from ..actors.peer import Peer
from ..actors.policy import policy
from ..actors.requests import body_for
from ..actors.sending import Sender
from ..actors.streams import ItemCall, ItemStream, RankFuture, StreamCall
from ..actors.wire import frame as f
from ..actors.wire import pickling, receivers
from ..actors.wire.receivers import pack_for
from .batches import map_items
from .dispatch import Merge, dispatch
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


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a call behaves: what `MeshEndpoint.options` sets.

    Attributes:
        timeout: seconds from the call until it fails with CallTimeout; reaches the endpoint (`context().remaining`).
        fail_fast: fail at the first failure plus 50 ms; False waits for all ranks. None: the policy's way.
        cancel_rest: ranks that still run when the call fails are cancelled.
        with_rank: streams give (rank, value).
        window: items a streaming endpoint may make ahead of what was taken, a rank.
    """

    timeout: float | None = None
    fail_fast: bool | None = None
    cancel_rest: bool = False
    with_rank: bool = False
    window: int = 16

    def __post_init__(self) -> None:
        if self.timeout is not None and not isinstance(self.timeout, int | float):
            raise TypeError(f"timeout={self.timeout!r} is not a number of seconds")
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout={self.timeout!r} is not a number of seconds")
        if not isinstance(self.window, int) or self.window < 1:
            raise ValueError(f"window={self.window!r}: a stream is at least one item ahead")


_DEFAULT = CallOptions()
_OPTIONS = frozenset(["timeout", "fail_fast", "cancel_rest", "with_rank", "window"])


def _option_names(definition: EndpointDefinition[Any, Any]) -> frozenset[str]:
    """The options that a call may name directly: those that the endpoint takes itself are its own."""
    parameters = definition.signature.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset()
    return _OPTIONS - {p.name for p in parameters}


class MeshEndpoint(Generic[P, R]):
    """One endpoint of a mesh or slice. Arguments are checked here, against the signature, before anything is sent.

    Options of a call, such as `timeout=` or `fail_fast=`, may stand among its keywords where the endpoint itself has
    no such parameter; `options()` sets them always.
    """

    def __init__(
        self, mesh: ActorMesh, definition: EndpointDefinition[Any, Any], options: CallOptions = _DEFAULT
    ) -> None:
        self._mesh = mesh
        self._members = mesh._members
        self._definition = definition
        self._name = definition.name
        self._actor = mesh._members.actor_id
        extent = mesh.extent
        self._wire_shape = (list(extent.labels), list(extent.sizes)) if extent.labels else None
        self._about = f"{mesh._members.name}.{definition.name}"
        self._known: tuple[Node, list[Peer], int] | None = None
        self._options = options
        self._direct = _option_names(definition)
        self._yields = inspect.isasyncgenfunction(definition.function) or inspect.isgeneratorfunction(
            definition.function
        )

    def __repr__(self) -> str:
        return f"<endpoint {self._about}{self._definition.signature} on {self._mesh.extent}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._about} is an endpoint of a mesh: write .{self._name}.call(...), .call_one(...), .choose(...), "
            f".stream(...) or .broadcast(...)"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            ways = ".call, .call_one, .choose, .stream, .broadcast, .map or .dispatch"
            raise AttributeError(f"an endpoint has no {name!r}: it is called by {ways}")

    def __reduce__(self) -> Any:
        if self._options is _DEFAULT:
            return getattr, (self._mesh, self._name)
        return MeshEndpoint, (self._mesh, self._definition, self._options)

    def options(self, **changes: Any) -> MeshEndpoint[P, R]:
        """The same endpoint, called with other options: `timeout`, `fail_fast`, `cancel_rest`, `with_rank`, `window`.

        Raises TypeError for an option that there is not.

        >>> trainer.step.options(timeout=30.0, cancel_rest=True).call(batch).get()      # doctest: +SKIP
        """
        unknown = sorted(set(changes) - _OPTIONS)
        if unknown:
            raise TypeError(f"a call has no option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
        return MeshEndpoint(self._mesh, self._definition, replace(self._options, **changes))

    def _with(self, kwargs: dict[str, Any]) -> MeshEndpoint[P, R]:
        """Take the options out of a call's keywords."""
        return self.options(**{name: kwargs.pop(name) for name in self._direct & kwargs.keys()})

    def _peers(self, node: Node) -> list[Peer]:
        known = self._known
        members = self._members
        if known is None or known[0] is not node or known[2] != members.generation:
            generation, refs = members.generation, members.refs
            peers = [node.peer_at(refs[rank]) for rank in self._mesh._shape.ranks()]
            for peer in peers:
                narrow(peer, self._actor, members.cls)
            known = self._known = (node, peers, generation)
        return known[1]

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], only: int | None = None
    ) -> tuple[Node, list[Peer], pickling.Packed]:
        self._definition.check(args, kwargs)
        node, peers = self._ready()
        if not receivers.wanted:
            return node, peers, pickling.pack((args, kwargs), "argument")
        chosen = peers if only is None else peers[only : only + 1]
        return node, peers, pack_for([peer.proc_id for peer in chosen], (args, kwargs), "argument")

    def _ready(self) -> tuple[Node, list[Peer]]:
        """The node and the members; raises when the mesh has been stopped."""
        if self._members.stopped:
            raise ActorStopped(
                f"{self._about}: the mesh has been stopped: {self._members.stopped}", mesh_name=self._members.name
            )
        home = self._members.home
        if home is not None and home.closed:
            raise home.left()
        node = current_node() or running_node()
        return node, self._peers(node)

    def _limit(self) -> tuple[float | None, bool]:
        """(seconds this call may take, whether they are those of the call that is being served)."""
        own = self._options.timeout
        message = serving()
        if message is None or message.deadline is None:
            return own, False
        left = max(message.deadline - time.monotonic(), 0.0)
        return (own, False) if own is not None and own <= left else (left, True)

    def _envelope(self, layout: Any, call: int, flags: int, limit: Any = None) -> bytes:
        envelope: bytes = f.packb([layout, self._actor, self._name, call, flags, self._wire_shape, limit])
        return envelope

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the one actor of a mesh of one; ValueError for a larger mesh.

        >>> counters.slice(gpus=0).add.call_one(1).get()              # doctest: +SKIP
        7
        """
        if kwargs and not self._direct.isdisjoint(kwargs):
            return self._with(kwargs).call_one(*args, **kwargs)
        node, peers, packed = self._begin(args, kwargs)
        if len(peers) != 1:
            raise ValueError(
                f"call_one is for a mesh of one, {self._members.name!r} has {len(peers)}: slice it, or use call"
            )
        return self._send_one(node, peers[0], 0, packed)

    def _send_one(
        self, node: Node, peer: Peer, rank: int, packed: pickling.Packed, call: OneCall | None = None, flags: int = 0
    ) -> Future[R]:
        if call is None:
            call = OneCall(node, self._about, peer, rank)
        limit = self._options.timeout
        if limit is not None or serving() is not None:
            limit, inherited = self._limit()
            if limit is not None:
                node.deadlines.add(call.call_id, limit, inherited)
        flags |= WANTS_ANSWER
        if not packed.buffers and not packed.definitions and len(packed.data) <= SMALL_FRAME:
            envelope = f.packb((None, self._actor, self._name, call.call_id, flags, self._wire_shape, limit))
            Sender.small(node, call, peer, self._actor, rank, envelope, packed.data)
            return call
        body = body_for(node, packed, (peer,)) if packed.buffers else bodies.inline(packed)
        Sender.one(node, call, peer, self._actor, rank, self._envelope(body.layout, call.call_id, flags, limit), body)
        return call

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor of the mesh, drawn at random."""
        if kwargs and not self._direct.isdisjoint(kwargs):
            return self._with(kwargs).choose(*args, **kwargs)
        rank = random.randrange(len(self._mesh))
        node, peers, packed = self._begin(args, kwargs, rank)
        return self._send_one(node, peers[rank], rank, packed)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor; the answers come as one ValueMesh in rank order.

        Fails at the first failure plus 50 ms in which further ones join; ranks still running are named and go on,
        unless `cancel_rest=True`. `fail_fast=False` waits for all ranks. All failures stand in the error's `errors`.

        >>> counters.add.call(1).get().item(gpus=1)                   # doctest: +SKIP
        8
        """
        if kwargs and not self._direct.isdisjoint(kwargs):
            return self._with(kwargs).call(*args, **kwargs)
        node, peers, packed = self._begin(args, kwargs)
        extent = self._mesh.extent
        call = self._mesh_call(node, peers, lambda values: ValueMesh(extent, values))
        self._send_many(node, call, list(enumerate(peers)), packed, call.call_id, WANTS_ANSWER)
        return call

    def _mesh_call(self, node: Node, peers: Sequence[Peer], gather: Any) -> MeshCall:
        options = self._options
        fail_fast = policy().fail_fast if options.fail_fast is None else options.fail_fast
        return MeshCall(node, self._about, peers, gather, fail_fast=fail_fast, cancel_rest=options.cancel_rest)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        """Call every actor; a future for each, in the order in which the answers arrive.

        A future's `.rank` says whose answer it is, once it is done; with `with_rank=True` it gives (rank, value).
        Of a streaming endpoint (a generator) it gives the items themselves, as they are made: an ItemStream.
        """
        if kwargs and not self._direct.isdisjoint(kwargs):
            return self._with(kwargs).stream(*args, **kwargs)
        node, peers, packed = self._begin(args, kwargs)
        options = self._options
        if self._yields:
            items = ItemCall(node, self._about, peers, self._actor, options.window)
            self._send_many(
                node, items, list(enumerate(peers)), packed, items.call_id, WANTS_ANSWER | WANTS_ITEMS, options.window
            )
            return ItemStream(items, options.with_rank)
        call = StreamCall(node, self._about, peers, with_rank=options.with_rank)
        self._send_many(node, call, list(enumerate(peers)), packed, call.call_id, WANTS_ANSWER)
        futures: list[RankFuture] = call.futures
        return iter(futures)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every actor and wait for nothing. An endpoint that raises then has nobody to tell: its actor fails."""
        node, peers, packed = self._begin(args, kwargs)
        self._send_many(node, None, list(enumerate(peers)), packed, 0, 0)

    def map(self, items: Sequence[Any], *, chunk: int | None = None) -> Future[list[R]]:
        """Call the endpoint once for each item; the results come as a list in the order of the items.

        The items are spread over the ranks, `chunk` of them in one message (default: an equal share of each rank in
        one). With `chunk` a rank that is quick gets the next chunk as soon as it has answered. Each item is one call
        at the actor, with the item as its only argument. The first failure is raised when all have answered; its
        `others` are the further ones, by index of the item.

        >>> rewards.score.map(completions, chunk=8).get()             # doctest: +SKIP
        """
        return map_items(self, items, chunk)

    def dispatch(self, *args: Any, split: str, merge: Merge | bool = False, **kwargs: Any) -> Future[Any]:
        """Call every actor, each with its own part of the batch: arguments are split over the dim `split`.

        Lists, arrays and tensors are cut into contiguous parts along their first axis, as evenly as can be, one part
        for each coordinate of the dim; ranks of the same coordinate get the same part, sent once. In a dict of such
        values each value is cut. Everything else, and what is wrapped in `Replicate(x)`, goes whole to all. One answer
        is taken from each group, that of its first rank: a ValueMesh over the dim; with `merge=True` the parts are
        joined again into one (lists, tuples, arrays, tensors, dicts of them), or by `merge(parts)`.

        Raises ValueError when parts differ in length, or a batch is shorter than the dim, before anything is sent.

        >>> trainer.step.dispatch(batch, 1e-5, split="dp", merge=True).get()           # doctest: +SKIP
        """
        return dispatch(self, args, kwargs, split, merge)

    def _send_many(
        self,
        node: Node,
        call: Any,
        targets: Sequence[tuple[int, Peer]],
        packed: pickling.Packed,
        number: int,
        flags: int,
        window: int = 0,
    ) -> None:
        limit, inherited = self._limit()
        if limit is not None and call is not None:
            node.deadlines.add(number, limit, inherited)
        limits = [limit, window] if window else limit
        Sender.many(
            node,
            call,
            [(peer, rank) for rank, peer in targets],
            self._actor,
            lambda layout: self._envelope(layout, number, flags, limits),
            packed,
        )


__all__ = ["NO_VALUE", "CallOptions", "MeshEndpoint", "running_node"]
