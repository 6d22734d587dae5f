"""Attaching to worker loops: hosts that were there before this program, and stay after it.

The program dials each, both prove the secret, and the agent describes its host. From then on it is a host as any other.
The agents of the program's own hosts are told too, so that its processes here and there reach each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..actors.errors import ActorDied, ActorStopped, CallTimeout, MeshFailure, RoostError, Unreachable
from ..actors.future import Future
from ..actors.link.address import Address, AddressError, parse
from ..actors.link.gate import DialError, DialRefused
from ..actors.link.stream import Link
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.requests import request, tell
from ..actors.runtime import Runtime
from ..actors.supervision import DYING_WAIT
from .attached import AttachedHosts
from .background import Background
from .gather import all_of
from .hostmesh import HostMesh, default_preload, import_path
from .hostref import HostRef
from .life import agent_lost
from .place import here, watch_end
from .secret import resolve_secret
from .shape import Extent

logger = logging.getLogger("roost")

PAUSES = (0.02, 1.0)  # first and longest pause between dials of a worker that is not there yet, seconds
LEAVE_TIMEOUT = 5.0  # seconds for attached hosts to end what this program has spawned there
WILDCARDS = ("0.0.0.0", "::")


class AttachError(RoostError):
    """A worker that could not be attached; the text names its address, and why."""


@dataclass(slots=True)
class Attachment:
    """One attached agent."""

    address: str
    secret: bytes
    host: HostRef
    gateway: int = 0  # the agent that relays to it; 0: this program has a link of its own
    stop_watch: Callable[[], None] | None = None


class Attachments:
    """The agents that a program has attached to."""

    def __init__(self, runtime: Runtime, agents: Callable[[], list[HostRef]]) -> None:
        self._runtime = runtime
        self._node = runtime.node
        self._own = agents  # of this program
        self._attached: dict[int, Attachment] = {}
        self.gateway: Attachment | None = None  # hosts are reached through its agent
        runtime.events["agent ends"] = self._agent_ends

    def __repr__(self) -> str:
        return f"<Attachments: {', '.join(each.address for each in self._attached.values()) or 'none'}>"

    # on the I/O thread

    async def attach_all(
        self, workers: Sequence[str | Future[str]], secret: bytes, timeout: float, about: str
    ) -> list[HostRef]:
        """Attach to all at once; the first that cannot be is told of, and ends the search."""
        tasks = [asyncio.ensure_future(self._attach(worker, secret, timeout)) for worker in workers]
        try:
            return list(await asyncio.gather(*tasks))
        except AttachError as error:
            raise AttachError(f"{about}{error}") from error.__cause__
        finally:
            for task in tasks:
                task.cancel()

    async def take_gateway(self, address: str, secret: bytes, timeout: float) -> None:
        """Attach to the agent that relays to all others."""
        host = await self._attach(address, secret, timeout)
        self.gateway = self._attached[host.agent_id]

    async def _attach(self, worker: str | Future[str], secret: bytes, timeout: float) -> HostRef:
        text = worker if isinstance(worker, str) else "a worker whose address has not come"
        why: list[str] = []
        address: Address | None = None
        try:
            async with asyncio.timeout(timeout):
                text = worker if isinstance(worker, str) else await worker
                address = parse(text.partition("@")[0])
                known = self._known(str(address), secret)
                if known is not None:
                    return known
                if self.gateway is not None:
                    return await self._reach(self.gateway.host, address, secret, why)
                link = await self._dial(address, secret, why)
                return await self._described(link, address, secret)
        except TimeoutError:
            if not why:
                why.append("nobody has told it yet" if address is None else self._node.gate.standing(str(address)))
            raise AttachError(f"worker {text} was not attached within {timeout:g} s: {why[0]}") from None
        except (DialRefused, AddressError, MeshFailure) as error:
            raise AttachError(f"worker {text} was not attached: {error}") from error

    def _known(self, address: str, secret: bytes) -> HostRef | None:
        for agent_id, each in self._attached.items():
            if each.address == address and each.secret == secret and self._linked(agent_id):
                return each.host
        return None

    def _linked(self, agent_id: int) -> bool:
        routing = self._node.routing
        return routing.via.get(agent_id, agent_id) in routing.links

    async def _dial(self, address: Address, secret: bytes, why: list[str]) -> Link:
        self._node.gate.learn(address, secret)
        pause = PAUSES[0]
        while True:
            try:
                return await self._node.routing._dial(str(address))
            except DialRefused:
                raise
            except DialError as error:
                why[:] = [f"{error}; is a worker loop running there?"]
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])

    async def _described(self, link: Link, address: Address, secret: bytes) -> HostRef:
        node = self._node
        if link.peer.role != "agent":
            raise DialRefused(f"{link.peer} answers there, which is no worker loop")
        peer = node.peer(link.peer.proc_id, link.peer.name)
        answer = await request(node, peer, "attach", here())
        host = self._host(answer, address)
        node.gate.learn(parse(host.agent_address), secret, address)
        node.routing.kept_up.add(host.agent_id)
        return self._settle(Attachment(str(address), secret, host), peer, answer["place"])

    async def _reach(self, gateway: HostRef, address: Address, secret: bytes, why: list[str]) -> HostRef:
        """The same through a gateway, which dials for this program and relays."""
        node = self._node
        pause = PAUSES[0]
        while True:
            answer = await request(node, gateway.agent(), "reach", str(address), secret)
            if isinstance(answer, dict):
                break
            no_use, reason = answer
            if no_use:
                raise DialRefused(reason)
            why[:] = [f"{reason}, dialled by {gateway.host}; is a worker loop running there?"]
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])
        host = self._host(answer, address)
        node.routing.via[host.agent_id] = gateway.agent_id
        peer = node.peer_at(host.agent())
        await request(node, peer, "attach", here())
        return self._settle(Attachment(str(address), secret, host, gateway.agent_id), peer, answer["place"])

    def _host(self, answer: dict[str, Any], address: Address) -> HostRef:
        ref = ProcRef.from_wire(answer["ref"])
        bound_to_all = parse(ref.agent_address).host in WILDCARDS
        told = str(address) if bound_to_all else ref.agent_address
        return HostRef(ref.node_id, ref.host, ref.proc_id, told, answer["run_dir"])

    def _settle(self, attachment: Attachment, peer: Peer, place: list[Any]) -> HostRef:
        """An agent has been attached: mind its end, and introduce it."""
        node, host = self._node, attachment.host
        peer.where, peer.watched = host.agent(), True
        peer.name = peer.where.name
        self._attached[host.agent_id] = attachment

        def died() -> None:  # its last words are read first
            node.io.loop.call_later(DYING_WAIT, self._died, host.agent_id)

        attachment.stop_watch = watch_end(place, node.io.loop, died)
        node.when_dead(host.agent_id, self._given_up)
        tell(node, peer, "warm", default_preload(), {}, import_path())
        if len(self._attached) == 1:
            self._runtime.at_end.append(self.leave)
        for own in self._own():
            self._introduce(own, attachment)
        return host

    def _introduce(self, own: HostRef, attachment: Attachment) -> None:
        """Have an agent of this program link to an attached one, for the processes of both."""
        node = self._node
        try:
            tell(node, node.peer_at(own.agent()), "link", *self._introduction(attachment))
        except MeshFailure as error:
            logger.info("%s was not told of %s: %s", own.host, attachment.address, error)

    def _introduction(self, attachment: Attachment) -> tuple[list[Any], str, bytes, int]:
        return attachment.host.agent().to_wire(), attachment.address, attachment.secret, attachment.gateway

    def introduce_all(self, own: HostRef) -> None:
        """This program has started another agent. From any thread."""
        for attachment in list(self._attached.values()):
            self._introduce(own, attachment)

    # ends

    def _forget(self, agent_id: int) -> Attachment | None:
        attachment = self._attached.pop(agent_id, None)
        if attachment is not None:
            self._node.routing.kept_up.discard(agent_id)
            if attachment.stop_watch is not None:
                attachment.stop_watch()
            for behind in [known for known, each in self._attached.items() if each.gateway == agent_id]:
                self._given_up(behind)
        return attachment

    def _agent_ends(self, peer: Peer, reason: str, planned: bool) -> None:
        if self._forget(peer.proc_id) is not None:
            kind = ActorStopped if planned else ActorDied
            agent_lost(self._runtime, peer.proc_id, lambda name: kind(f"{name}: {reason}", mesh_name=name))

    def _died(self, agent_id: int) -> None:
        attachment = self._forget(agent_id)
        if attachment is not None:
            what = f"the worker loop at {attachment.address} has died, and its processes with it"
            agent_lost(self._runtime, agent_id, lambda name: ActorDied(f"{name}: {what}", mesh_name=name))

    def _given_up(self, agent_id: int) -> None:
        attachment = self._forget(agent_id)
        if attachment is not None:
            what = f"its host {attachment.host.host} cannot be reached at {attachment.address}; it may live"
            agent_lost(self._runtime, agent_id, lambda name: Unreachable(f"{name}: {what}", mesh_name=name))

    def end_spawned(self, hosts: Sequence[HostRef], reason: str, *, for_good: bool = False) -> Future[None]:
        """End what this program, and its processes elsewhere, have spawned on these hosts; the hosts stay."""
        agents = [own.agent_id for own in self._own()]
        futures = [
            request(self._node, host.agent(), "leave", reason, for_good, agents)
            for host in hosts
            if host.agent_id in self._attached
        ]
        return all_of(futures, ignore=(MeshFailure, RoostError))

    def leave(self) -> None:
        """The program ends: so does what it has spawned, and the hosts are free for the next."""
        hosts = [each.host for agent_id, each in list(self._attached.items()) if self._linked(agent_id)]
        try:
            self.end_spawned(hosts, "the program has ended", for_good=True).get(LEAVE_TIMEOUT)
        except CallTimeout:
            logger.warning("not all attached hosts have ended this program's processes yet: they do so on their own")
        for agent_id in list(self._attached):
            self._node.io.call(self._forget, agent_id)


def attach_to_workers(
    workers: Sequence[str | Future[str]],
    *,
    secret: bytes | str | None = None,
    name: str | None = None,
    timeout: float = 60.0,
) -> HostMesh:
    """The hosts of worker loops (`run_worker_loop_forever`), in the order given, in one dimension, `hosts`.

    Args:
        workers: their addresses, or futures of them.
        secret: what the loops were started with; None is the one in `$ROOST_SECRET_FILE`, else `~/.roost/secret`.
        name: of the mesh, in errors.
        timeout: seconds for all of them to be there; one that is still starting is waited for.

    Returns at once. `initialized` is done when all are attached; it fails, as does all else that is done with the
    hosts, with AttachError, which names the worker and says why: nobody listens there, another secret or version.

    What this program spawns on them ends when it stops it, or calls `stop()` on the hosts, or ends itself, cleanly or
    not; where that cannot be seen, `ROOST_LINK_TIMEOUT` after it was last heard of. The loops stay for the next
    program; `shutdown()` ends them. Only the program itself attaches; it can send the mesh to its actors. Attach before
    anything else is spawned where `RDMABuffer`s are to be read between those hosts and this one: then all share the
    secret.

    >>> hosts = attach_to_workers(["tcp://10.0.0.7:4000", "tcp://10.0.0.8:4000"])        # doctest: +SKIP
    >>> hosts.spawn_procs({"gpus": 8})                                                   # doctest: +SKIP
    """
    from .local import controller

    if isinstance(workers, str) or not isinstance(workers, Sequence):
        raise TypeError(f'workers is a list of addresses, such as ["tcp://10.0.0.7:4000"], not {workers!r}')
    if not workers:
        raise ValueError("there are no workers to attach to: give at least one address")
    key = resolve_secret(secret)
    program = controller(key)
    about = f"{name}: " if name else ""
    ready: Background[list[HostRef]] = Background(
        program.node,
        f"attaching to {len(workers)} workers",
        program.attachments.attach_all(workers, key, timeout, about),
        list,
    )
    mesh = HostMesh(AttachedHosts(workers, ready), Extent(["hosts"], [len(workers)]).region)
    mesh._started = ready
    return mesh


def attach(address: str, *, secret: bytes | str | None = None, timeout: float = 60.0) -> None:
    """Reach all hosts that are attached to from now on through the worker loop at this address, by one connection.

    For a program outside of a cluster, such as a notebook, that can dial one host of it alone: that host's agent dials
    the others, and relays. Again with the same address is harmless. Raises AttachError when it cannot be attached, and
    RoostError when the program has another gateway.

    >>> attach("tcp://gateway:4000")                                                     # doctest: +SKIP
    >>> hosts = attach_to_workers(["tcp://node1:4000", "tcp://node2:4000"])              # doctest: +SKIP
    """
    from .local import controller

    key = resolve_secret(secret)
    program = controller(key)
    attachments = program.attachments
    known = attachments.gateway
    wanted = str(parse(address.partition("@")[0]))
    if known is not None and known.address != wanted:
        raise RoostError(f"this program reaches its hosts through {known.address} already, so not through {wanted} too")
    if known is None:
        about = f"attaching to the gateway {wanted}"
        Background(program.node, about, attachments.take_gateway(wanted, key, timeout), lambda raw: None).get()
