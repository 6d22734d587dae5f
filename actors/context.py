"""Context: which actor, which message, which rank the running code belongs to."""

from __future__ import annotations

import contextvars
import time
from typing import TYPE_CHECKING, Any, cast

from .errors import ActorDied, RoostError
from .refs import ROOT_ACTOR, ActorId
from .wire import pickling

if TYPE_CHECKING:
    from ..mesh.procmesh import ProcMesh
    from ..mesh.shape import Point
    from .cell import Cell
    from .peer import Peer
    from .port import Port

NO_REASON = "no reason provided"


class Message:
    """One call as it waits and runs at its actor."""

    __slots__ = (
        "arrived", "buffers", "call_id", "cancelled", "cell", "data", "deadline", "flags", "method", "nbytes", "peer",
        "rank", "running", "shape", "task", "window",
    )  # fmt: skip

    def __init__(
        self, cell: Cell, peer: Peer, rank: int, fields: list[Any], data: Any, buffers: list[Any], nbytes: int
    ) -> None:
        self.cell = cell
        self.peer = peer
        self.rank = rank
        _, _, self.method, self.call_id, self.flags, self.shape, limits = fields[:7]
        self.arrived = time.monotonic()
        self.deadline: float | None = None  # on this process's monotonic clock
        self.window = 0  # items that a streaming endpoint may have sent by now
        if limits is not None:
            seconds, self.window = limits if isinstance(limits, list) else (limits, 0)
            if seconds is not None:
                self.deadline = self.arrived + seconds
        self.data = data
        self.buffers = buffers
        self.nbytes = nbytes
        self.cancelled: str | None = None  # the reason, once nobody waits for the answer
        self.running = False
        self.task: Any = None  # what can be cancelled while it runs: an asyncio task, or whatever has `cancel(message)`

    @classmethod
    def of_cell(cls, cell: Cell) -> Message:
        """What hooks and `__init__` run under: the actor itself, at its own rank."""
        fields = [None, cell.actor_id, "", 0, 0, cell.shape, None]
        return cls(cell, cell.node.peer(cell.node.proc_id), cell.rank, fields, b"", [], 0)

    @property
    def key(self) -> tuple[int, int]:
        return self.peer.proc_id, self.call_id

    @property
    def over(self) -> bool:
        """Whether nobody waits for the answer any more: cancelled, or its deadline has passed."""
        return self.cancelled is not None or (self.deadline is not None and time.monotonic() >= self.deadline)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0.0 when it has passed; None without one."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle the arguments, and forget their bytes: their memory goes with the arguments themselves."""
        arguments = cast(tuple[tuple[Any, ...], dict[str, Any]], pickling.unpack(self.data, self.buffers))
        self.data, self.buffers = b"", []
        return arguments

    def port(self) -> Port[Any]:
        """Where an endpoint with an explicit response port sends its answer."""
        from .port import answer_port

        return answer_port(self)


_message: contextvars.ContextVar[Message | None] = contextvars.ContextVar("roost_message", default=None)


def enter(message: Message) -> None:
    """What runs now, in this thread or task, belongs to `message`."""
    _message.set(message)


serving = _message.get  # `current_message` for hot paths


def current_message() -> Message | None:
    """The message whose code is running, or None outside of actors."""
    return _message.get()


def current_owner(proc_id: int) -> ActorId:
    """Who owns what is spawned now: the running actor, or the program itself."""
    message = _message.get()
    return ActorId(proc_id, message.cell.actor_id if message is not None else ROOT_ACTOR)


class Instance:
    """The actor that runs, as it sees itself."""

    def __init__(self, cell: Cell | None) -> None:
        self._cell = cell

    @property
    def name(self) -> str:
        """The name it was spawned under; "client" in the controller's own program."""
        return self._cell.name if self._cell is not None else "client"

    @property
    def actor_id(self) -> str:
        """A text that names it in the job."""
        return f"{self.name}[{self._cell.rank}]" if self._cell is not None else "client"

    @property
    def class_name(self) -> str:
        """The name of its class; "Client" in the controller's own program."""
        return self._cell.class_name if self._cell is not None else "Client"

    @property
    def rank(self) -> Point:
        """Its rank in the mesh it was spawned in."""
        return _point(self._cell.rank if self._cell else 0, self._cell.shape if self._cell else None)

    @property
    def creator(self) -> str | None:
        """Who spawned it: "client" for the controller's program, else the actor's name, or what is known of it here."""
        cell = self._cell
        if cell is None:
            return None
        if cell.owner.actor_id == ROOT_ACTOR:
            return "client"
        spawner = cell.node.cells.get(cell.owner.actor_id) if cell.owner.proc_id == cell.node.proc_id else None
        return spawner.name if spawner is not None else f"an actor in {cell.node.peer(cell.owner.proc_id).name}"

    @property
    def proc(self) -> ProcMesh:
        """The process it lives in, as a mesh of one."""
        from ..mesh.local import this_proc

        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """The processes that its mesh was spawned on, in their shape; asked of whoever spawned it."""
        from ..mesh.origin import procs_of

        return procs_of(self._cell) if self._cell is not None else self.proc

    @property
    def proc_name(self) -> str:
        """The name of its process."""
        from .node import current_node

        node = current_node()
        return node.name if node is not None else ""

    def abort(self, reason: str | None = None) -> None:
        """Fail: after the message that runs, before those that wait, which are answered with the reason.

        Its owner is asked as for any failure; `__cleanup__` gets the failure.
        """
        self._fail("aborted", reason)

    def kill(self, reason: str | None = None) -> None:
        """The same as `abort` without `__cleanup__`."""
        self._me().killed = True
        self._fail("was killed", reason)

    def stop(self, reason: str | None = None) -> None:
        """End after the messages that wait, as the owner's `stop` does; no failure."""
        self._me().stop(reason or NO_REASON)

    def set_system(self) -> None:
        """Mark the actor as one of the system's own; it makes no difference."""

    def _me(self) -> Cell:
        if self._cell is None:
            raise RoostError("the program itself is no actor: it ends with shutdown()")
        return self._cell

    def _fail(self, how: str, reason: str | None) -> None:
        cell = self._me()
        text = f"{cell.name} {how}: {reason or NO_REASON}"
        cell.fail_from_outside(ActorDied(text, mesh_name=cell.name, crashed_ranks=(cell.rank,)), text)

    def __repr__(self) -> str:
        return f"<actor {self.actor_id}>"


class Context:
    """What `context()` gives: the actor, the message's rank, and whether the caller has cancelled the call."""

    def __init__(self, message: Message | None) -> None:
        self._message = message

    @property
    def actor_instance(self) -> Instance:
        """The running actor."""
        return Instance(self._message.cell if self._message is not None else None)

    @property
    def message_rank(self) -> Point:
        """The rank within the mesh, or slice, that was called."""
        if self._message is None:
            return _point(0, None)
        return _point(self._message.rank, self._message.shape)

    @property
    def cancelled(self) -> bool:
        """Whether the caller no longer waits: it has cancelled, or the deadline has passed. Long sync endpoints look
        at it and return."""
        return self._message is not None and self._message.over

    @property
    def deadline(self) -> float | None:
        """When the caller no longer waits, on this process's `time.monotonic()`; None if it waits for ever."""
        return self._message.deadline if self._message is not None else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0.0 when it has passed; None without one."""
        return self._message.remaining if self._message is not None else None

    def __repr__(self) -> str:
        return f"<Context of {self.actor_instance!r} at {self.message_rank!r}>"


def _point(rank: int, shape: Any) -> Point:
    from ..mesh.shape import Extent, Point

    labels, sizes = shape if shape is not None else ((), ())
    return Point(rank, Extent(labels, sizes))


def context() -> Context:
    """The context of the running code; in the controller's own program that of the client.

    >>> context().actor_instance
    <actor client>
    """
    return Context(_message.get())


def current_rank() -> Point:
    """The rank within the mesh, or slice, that was called; `context().actor_instance.rank` is the rank at spawn.

    >>> current_rank()
    {}
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """The sizes of the mesh, or slice, that was called, by dimension.

    >>> current_size()
    {}
    """
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """The name and rank of the running actor.

    >>> current_actor_name()
    'client'
    """
    return context().actor_instance.actor_id
