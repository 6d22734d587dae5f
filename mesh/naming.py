"""Names: meshes that any process of a program, or a later program, finds again.

A program's own names stand in its own process. Those of detached meshes (`spawn_procs(lifetime="job", name=...)`) stand
at the agent of the mesh's first host, with a copy at that of the second, and outlive the program: a later one that has
attached to the same workers finds them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgpack

from ..actors import bodies
from ..actors.actor import Actor
from ..actors.errors import ActorDied, MeshFailure, RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.requests import request
from ..actors.routing import agent_ref
from ..actors.wire import pickling
from ..actors.wire.definitions import DEFINITIONS
from .actormesh import ActorMesh
from .background import Background
from .detached import current_root
from .endpoints import running_node
from .hostmesh import HostMesh
from .nametable import Named, NameTable
from .procmesh import ProcMesh, check_class

logger = logging.getLogger("roost.names")

A = TypeVar("A", bound=Actor)


class NameTaken(RoostError):
    """Another mesh that lives has this name: stop it or `unpublish` the name, or take another."""


class NameUnknown(RoostError, LookupError):
    """No mesh has this name."""


def dump(mesh: Any) -> bytes:
    """A mesh as bytes that any process can load, whatever it has been sent before."""
    packed = pickling.pack(mesh, "mesh")
    body = bodies.inline(packed)
    definitions = [[content, DEFINITIONS.blob(content)] for content in packed.definitions]
    data: bytes = msgpack.packb([body.layout, b"".join(body.parts), definitions])
    return data


def load(data: bytes) -> Any:
    """The mesh again. Runs code of whoever dumped it."""
    layout, body, definitions = msgpack.unpackb(data)
    for content, blob in definitions:
        DEFINITIONS.learn(content, blob)
    return pickling.unpack(*bodies.cut(layout, body))


def root() -> ProcRef:
    """The program's own process, which holds its names. Raises RoostError in a detached one, which outlives it."""
    node = running_node()
    found = current_root()
    if found is None:
        raise RoostError(
            f"{node.name} is detached: it outlives the program, and so has no share in the program's names"
        )
    return found


# --- one controller a name


def get_or_spawn_controller(name: str, Class: type[A], *args: Any, **kwargs: Any) -> Future[A]:
    """The program's one actor of this name, spawned at the first call as `Class(*args, **kwargs)` in a process of its
    own beside the program; done when it has started.

    From any process of the program, any number of callers at once get the same actor; the arguments of all but the
    first are ignored. Where its `__init__` raises, those who wait for it get ActorDied with the reason, and a later
    call tries again, as it does when the actor has ended since.

    >>> registry = get_or_spawn_controller("registry", Registry).get()           # doctest: +SKIP
    >>> registry.add.call_one("x").get()                                         # doctest: +SKIP
    """
    check_class(Class, args, kwargs)
    node = running_node()
    packed = pickling.pack((Class, args, kwargs), f"argument of {name!r}")
    body = bodies.inline(packed)
    asked = _asked(request(node, root(), "names spawn", name, body.layout, body=body))
    return Background(node, f"get_or_spawn_controller({name!r})", asked, load)


async def _asked(future: Future[Any]) -> Any:
    return await future


# --- names of a program, and of detached meshes


@dataclass(frozen=True, slots=True)
class Card:
    """A mesh as it stands in a table."""

    name: str
    about: str
    packed: bytes
    refs: tuple[ProcRef, ...]
    actor_id: int  # 0: processes

    @classmethod
    def of(cls, name: str, mesh: Any) -> Card:
        """The card of an actor or process mesh."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"a name is a text that is not empty, not {name!r}")
        if isinstance(mesh, ActorMesh):
            members = mesh._members
            refs, actor_id = tuple(members.refs[rank] for rank in mesh._shape.ranks()), members.actor_id
        elif isinstance(mesh, ProcMesh):
            refs, actor_id = tuple(mesh._members()), 0
        else:
            raise TypeError(f"only actor and process meshes have names, not {mesh!r}")
        return cls(name, repr(mesh), dump(mesh), refs, actor_id)

    def put(self, node: Node, keeper: ProcRef, *, copy: bool = False) -> Future[Any]:
        """Ask for the name in the table of `keeper`: None when it is ours, what has it, or False when it is not kept
        there."""
        refs = [ref.to_wire() for ref in self.refs]
        body = bodies.Body(None, [self.packed], len(self.packed))
        return request(node, keeper, "names put", self.name, self.about, refs, self.actor_id, copy, body=body)

    async def place(self, node: Node) -> None:
        """Put it where it belongs: a detached one at its hosts, any other with the program. Raises NameTaken."""
        agents = list({ref.agent_id: agent_ref(ref) for ref in self.refs}.values())
        holder = await self.put(node, agents[0])
        if holder is None:
            if not self.actor_id:
                await self._keep(node, agents[1:])
            for keeper in (*agents[1:2], *_own_root()):
                try:
                    await self.put(node, keeper, copy=True)
                except MeshFailure as error:
                    logger.warning("the name %r has no copy at %s: %s", self.name, keeper.name, error)
        elif holder is False:
            holder = await self.put(node, root())
        if holder:
            raise NameTaken(
                f"the name {self.name!r} is that of {holder}, which lives: stop it, unpublish the name, or take another"
            )

    async def _keep(self, node: Node, agents: list[ProcRef]) -> None:
        """The first host has noted that the mesh has its name: the others are to keep their processes too."""
        theirs = {agent: [ref.proc_id for ref in self.refs if ref.agent_id == agent.proc_id] for agent in agents}
        told = [_asked(request(node, agent, "keep detached", proc_ids)) for agent, proc_ids in theirs.items()]
        for agent, answer in zip(agents, await asyncio.gather(*told, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                logger.warning("%s was not told that %r has its name: %s", agent.name, self.name, answer)


def _own_root() -> list[ProcRef]:
    found = current_root()
    return [found] if found is not None else []


def publish(name: str, mesh: Any) -> Future[None]:
    """Give an actor or process mesh a name, once it has started; `lookup` finds it from any process of the program.

    A detached mesh is published at its hosts, where later programs `find` it. Fails with NameTaken where another mesh
    that lives has the name; the name of one that has ended is free.

    >>> publish("policy", actors).get()                                          # doctest: +SKIP
    """
    node = running_node()
    card = Card.of(name, mesh)
    started = mesh.initialized

    async def place() -> None:
        await started
        await card.place(node)

    return Background(node, f"publish({name!r})", place(), lambda raw: None)


def claim(node: Node, name: str, mesh: Any, started: Future[Any]) -> Future[None]:
    """Publish a detached mesh that is just being spawned; where the name is taken the mesh is stopped.

    It gets its name once its processes have `started` on every host; until then they are this program's own.
    """
    card = Card.of(name, mesh)

    async def place() -> None:
        await started
        try:
            await card.place(node)
        except NameTaken:
            mesh.stop("its name is taken")
            raise

    return Background(node, f"publish({name!r})", place(), lambda raw: None)


def lookup(name: str) -> Future[Any]:
    """The mesh that a process of this program has published under a name. Fails with NameUnknown.

    >>> lookup("policy").get().act.call(observation)                             # doctest: +SKIP
    """
    node = running_node()
    asked = _asked(request(node, root(), "names get", name))
    return Background(node, f"lookup({name!r})", asked, lambda raw: _loaded(name, raw, "this program"))


def unpublish(name: str, hosts: HostMesh | None = None) -> Future[bool]:
    """Take a name away, of this program or, with `hosts`, of a detached mesh there; what had it lives on.

    The answer is whether there was such a name.
    """
    node = running_node()

    async def drop() -> bool:
        keepers = _own_root() if hosts is None else await _agents(hosts)
        answers = await asyncio.gather(*(_asked(request(node, keeper, "names drop", name)) for keeper in keepers))
        return any(answers)

    return Background(node, f"unpublish({name!r})", drop(), bool)


def find(hosts: HostMesh, name: str) -> Future[Any]:
    """The detached mesh of this name on these hosts, spawned by this program or an earlier one.

    Processes that were spawned with `lifetime="job", name="gen"` are found as "gen", an actor mesh "policy" that was
    spawned on them as "gen/policy". Where they have died the calls fail with ActorDied, which tells how. Fails with
    NameUnknown.

    >>> policy = find(attach_to_workers(workers), "gen/policy").get()            # doctest: +SKIP
    """
    node = running_node()

    async def ask() -> Any:
        agents = await _agents(hosts)
        answers, failures = await _answers(node, agents, "names get", name)
        found = [answer for answer in answers if answer is not None]
        if not found and failures:
            raise failures[0]
        return found[0] if found else None

    return Background(node, f"find({name!r})", ask(), lambda raw: _loaded(name, raw, repr(hosts)))


async def _answers(node: Node, keepers: list[ProcRef], what: str, *arguments: Any) -> tuple[list[Any], list[Exception]]:
    """What they answer, and why others do not: names have copies."""
    asked = [_asked(request(node, keeper, what, *arguments)) for keeper in keepers]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, Exception)]
    return [answer for answer in answers if not isinstance(answer, BaseException)], failures


def names(hosts: HostMesh | None = None) -> Future[list[str]]:
    """The names of the detached meshes on these hosts that live; without `hosts`, of this program's own.

    Hosts that have died are passed over, since names have a copy at a second one; where all have, it fails.
    """
    node = running_node()

    async def ask() -> list[str]:
        keepers = [root()] if hosts is None else await _agents(hosts)
        answers, failures = await _answers(node, keepers, "names list")
        if not answers and failures:
            raise failures[0]
        return sorted({name for answer in answers for name in answer})

    return Background(node, "names()", ask(), list)


def _loaded(name: str, raw: Any, where: str) -> Any:
    if raw is None:
        raise NameUnknown(f"nothing has the name {name!r} in {where}: `names` lists what there is")
    return load(raw)


async def _agents(hosts: HostMesh) -> list[ProcRef]:
    ready = getattr(hosts._hosts, "ready", None)
    if ready is not None:
        await ready
    return [hosts._hosts[rank].agent() for rank in hosts._shape.ranks()]


class ProgramNames(NameTable):
    """The names of a program, in its own process, and the one controller a name."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._spawning: dict[str, asyncio.Task[bytes]] = {}
        node.system["names spawn"] = self.spawn

    async def get(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[name]: the mesh, if any of it lives."""
        known = self.named.get(arguments[0])
        return known.packed if known is not None and await known.lives(node) else None

    def spawn(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[name, layout], the body is (class, args, kwargs): the actor of this name, spawned when there is none."""
        name, layout = arguments
        task = self._spawning.get(name)
        if task is None:
            task = node.io.loop.create_task(self._spawn(node, name, *node.open_body(layout, body)))
            self._spawning[name] = task
            node.routing.tasks.add(task)
            task.add_done_callback(node.routing.tasks.discard)
            task.add_done_callback(lambda done: self._spawning.pop(name, None))
        return asyncio.shield(task)

    async def _spawn(self, node: Node, name: str, data: Any, buffers: list[Any]) -> bytes:
        known = self.named.get(name)
        if known is not None and await known.lives(node):
            return known.packed
        done: asyncio.Future[Card] = node.io.loop.create_future()
        threading.Thread(
            target=_construct, args=(node, name, data, buffers, done), name=f"roost-names-{name}", daemon=True
        ).start()  # it runs the user's code: unpickles arguments, and waits for `__init__`
        card = await done
        self.named[name] = Named(card.packed, card.about, card.refs, card.actor_id)
        return card.packed


def _construct(node: Node, name: str, data: Any, buffers: list[Any], done: asyncio.Future[Card]) -> None:
    from .local import this_host

    def tell(complete: Callable[..., object], value: object) -> None:
        if not done.done():
            complete(value)

    try:
        Class, args, kwargs = cast(tuple[Any, Any, Any], pickling.unpack(data, buffers))
        procs = this_host().spawn_procs(name=name.replace("/", "-"))
        try:
            mesh = procs.spawn(name, Class, *args, **kwargs)
            mesh.initialized.get()
            card = Card.of(name, mesh)
        except BaseException:  # the process that it was to live in goes with it
            procs.stop("its actor did not start")
            raise
        if not node.closed:
            node.io.call(tell, done.set_result, card)
    except Exception as error:  # noqa: BLE001 - whoever has asked is told
        if not node.closed:
            known = isinstance(error, RoostError)
            node.io.call(tell, done.set_exception, error if known else ActorDied(f"{name} was not spawned: {error}"))
