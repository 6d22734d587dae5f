"""Respawn: processes and actors that have failed are started anew, in their old places and with what they were given.

The new processes are known at once: meshes that were spawned here point to them before they run, and what is sent to
them waits, as after `spawn_procs`. Ranks that have lived on are told, in order with the calls of this process, that
the mesh is of a new epoch (`actors/epochs.py`), and have their `__restore__` run before calls that wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..actors.bodies import Body, inline
from ..actors.errors import ActorStopped, MeshFailure, RoostError, Unreachable
from ..actors.future import Future
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ActorId, ProcRef
from ..actors.requests import request
from ..actors.restart import Restart
from ..actors.routing import agent_ref
from ..actors.runtime import current_runtime
from ..actors.supervision import Owned, Supervisor, amend
from ..actors.wire.pickling import Packed
from .gather import all_of
from .restart import RestartPolicy

if TYPE_CHECKING:
    from .actormesh import Members
    from .procmesh import Processes

logger = logging.getLogger("roost.mesh")

KEPT_BYTES = 16 << 20  # of the arguments of an actor mesh, so that it can be spawned again
renewing = threading.RLock()  # one respawn, or spawn, after the other

Start = Callable[[Sequence[tuple[int, ProcRef]]], Future[Any]]


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """How an actor mesh was spawned: what it takes to spawn it again. The body is the class and its arguments, as
    they were at the spawn; None where they were too large to be kept."""

    owner: ActorId
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    body: Body | None
    nbytes: int

    @classmethod
    def keep(cls, owner: ActorId, extent: Any, packed: Packed, sent: Body, unlimited: bool) -> ActorPlan:
        """Keep what was sent, copied where it lies in shared memory that the receivers take over."""
        body = None
        if unlimited or packed.nbytes <= KEPT_BYTES:
            body = sent if sent.segment is None else inline(packed)
        return cls(owner, tuple(extent.labels), tuple(extent.sizes), body, packed.nbytes)

    def check(self, name: str) -> None:
        """Raise RoostError if it cannot be spawned again."""
        if self.body is None:
            raise RoostError(
                f"{name!r} cannot be spawned again: its arguments are {self.nbytes >> 20} MiB, and {KEPT_BYTES >> 20} "
                "MiB are kept; give spawn_procs a restart policy, which keeps all, or load them in __init__"
            )

    def send(
        self,
        node: Node,
        members: Members,
        ranks: Iterable[int],
        body: Body | None = None,
        restart: Restart | None = None,
    ) -> list[Future[Any]]:
        """Ask the processes of these ranks to spawn their actor."""
        sent = body or self.body
        assert sent is not None
        labels, sizes = list(self.labels), list(self.sizes)
        wire = restart.to_wire() if restart is not None else None
        owner = (self.owner.proc_id, self.owner.actor_id)
        spawn = ("spawn actor", members.actor_id, members.name)
        actor = members.actor_id
        return [
            request(
                node, members.refs[rank], *spawn, rank, labels, sizes, *owner, sent.layout, wire, body=sent, actor=actor
            )
            for rank in ranks
        ]


class _Later(Future[Any]):
    """A future whose maker is not known yet."""

    __slots__ = ("_inner",)

    _inner: Future[Any]

    def follow(self, inner: Future[Any]) -> None:
        """Take this one's outcome."""
        self._inner = inner

        def done() -> None:
            self.set_raw(None)

        if not inner._when_done(done):
            done()

    def _decode(self, raw: Any) -> Any:
        return self._inner._result()


class Respawner:
    """Starts dead ranks of one process mesh anew, when asked and by its policy. In the process that spawned it.

    `start` starts processes of given ranks; `place` gives where the next process of a rank will be.
    """

    def __init__(
        self,
        node: Node,
        processes: Processes,
        start: Start,
        place: Callable[[int], ProcRef],
        policy: RestartPolicy | None,
    ) -> None:
        self.policy = policy
        self.restarts: list[Restart] = []
        self.listeners: list[Callable[[Restart], object]] = []
        self._node = node
        self._processes = processes
        self._start = start
        self._place = place
        self._latest: Future[Any] | None = None
        self._history: list[float] = []  # when, on the I/O thread's clock, the policy has restarted
        self._waiting: dict[tuple[int, int], str] = {}  # by (actor or 0, rank): why it will be restarted
        self._timer: Any = None
        self._due = 0.0

    def __repr__(self) -> str:
        waiting = f", {len(self._waiting)} ranks wait" if self._waiting else ""
        return f"<Respawner of {self._processes.name}: {len(self.restarts)} restarts{waiting}>"

    # when asked

    def respawn(self, ranks: Sequence[int] | None, among: Sequence[int], reason: str, force: bool) -> Future[Any]:
        """Start dead ranks anew: those given, or all that are dead `among` these. From any thread; waits for none."""
        node, processes = self._node, self._processes
        with renewing:
            if node.closed:
                raise node.left()
            if processes.stopped:
                raise ActorStopped(f"mesh {processes.name!r} has been stopped: {processes.stopped}; spawn it anew")
            dead = [rank for rank in among if self._peer(rank).dead is not None]
            chosen = sorted(dead if ranks is None else set(ranks))
            live = [rank for rank in chosen if rank not in dead]
            if live and not force:
                raise ValueError(
                    f"{processes.refs[live[0]].name} lives: only dead ranks are respawned; with force=True it is "
                    "killed first"
                )
            if not chosen:
                return self._latest or processes.started
            return self._renew(chosen, live, reason)

    def _peer(self, rank: int) -> Peer:
        return self._node.peer_at(self._processes.refs[rank])

    def _renew(self, chosen: list[int], live: list[int], reason: str) -> Future[Any]:
        node, processes = self._node, self._processes
        refs = processes.refs
        gone = {refs[rank].proc_id for rank in chosen}
        actors = self._actors_on(gone)
        doubtful = [refs[r] for r in chosen if r in live or isinstance(self._peer(r).dead, Unreachable)]
        epoch = max(ref.epoch for ref in refs) + 1
        restart = Restart(epoch, tuple(chosen), False, reason)
        renewed = {
            ref.proc_id: replace(self._place(rank) if rank in chosen else ref, epoch=epoch)
            for rank, ref in enumerate(refs)
        }
        told = [self._tell(renewed[ref.proc_id], restart) for ref in refs if ref.proc_id not in gone]
        for proc_id in gone:
            peer = node.peer_at(renewed[proc_id])
            peer.watched = peer.routing = True  # what is sent to it waits until it has been asked for
        self._adopt(renewed)
        spawned: list[Future[Any]] = []
        for members, plan, ranks in actors:
            futures = plan.send(node, members, ranks, restart=replace(restart, fresh=True))
            members.started = all_of(futures, make=lambda values: True)
            spawned += futures
        launched = _Later()
        self._end_then_launch(doubtful, chosen, reason, launched)
        processes.started = all_of([launched], make=lambda values: True)
        self._latest = all_of([launched, *spawned, all_of(told, ignore=(RoostError,))])
        self._note(restart)
        return self._latest

    def _actors_on(self, gone: set[int]) -> list[tuple[Members, ActorPlan, list[int]]]:
        """The actor meshes that have ranks on these processes; raises if one cannot be spawned again."""
        found = []
        for members in self._processes.members:
            ranks = [rank for rank, ref in enumerate(members.refs) if ref.proc_id in gone]
            if ranks and not members.stopped and members.plan is not None:
                members.plan.check(members.name)
                found.append((members, members.plan, ranks))
        return found

    def _tell(self, ref: ProcRef, restart: Restart) -> Future[Any]:
        """Tell one that has lived on; what is sent to it after that is of the new epoch."""
        peer = self._node.peer(ref.proc_id)
        with peer.lock:
            future = request(self._node, peer, "restored", restart.to_wire(), 0)
            peer.where = ref
        return future

    def _adopt(self, renewed: dict[int, ProcRef]) -> None:
        """Let everything here point to the new processes."""
        processes, supervisor = self._processes, _supervisor()
        processes.refs = tuple(renewed[ref.proc_id] for ref in processes.refs)
        moved = {old: ref.proc_id for old, ref in renewed.items() if old != ref.proc_id}
        owned: list[Owned | None] = [processes.owned]
        for members in processes.members:
            members.refs = tuple(renewed.get(ref.proc_id, ref) for ref in members.refs)
            members.generation += 1
            owned.append(members.owned)
        for each in owned:
            if each is not None:
                supervisor.renew(each, moved)

    def _end_then_launch(self, doubtful: list[ProcRef], chosen: list[int], reason: str, launched: _Later) -> None:
        """End what lives still, or may, then start the new ones."""
        node = self._node
        wanted = {rank: self._processes.refs[rank].proc_id for rank in chosen}
        if not doubtful:
            self._launch(wanted, launched)
            return
        hosts: dict[int, list[ProcRef]] = {}
        for ref in doubtful:
            hosts.setdefault(ref.agent_id, []).append(ref)
        ended = all_of(
            [
                request(node, agent_ref(group[0]), "stop", [ref.proc_id for ref in group], reason, 0.0, False)
                for group in hosts.values()
            ],
            ignore=(RoostError,),
        )

        def launch() -> None:
            node.io.call(self._launch, wanted, launched)

        if not ended._when_done(launch):
            launch()

    def _launch(self, wanted: dict[int, int], launched: _Later) -> None:
        """Start the processes, but for those that have been stopped or replaced while others ended."""
        node, processes = self._node, self._processes
        with renewing:
            ready = []
            for rank, proc_id in wanted.items():
                if processes.stopped or processes.refs[rank].proc_id != proc_id:
                    why = processes.stopped or "it was respawned again"
                    node.io.call(node.bury, node.peer(proc_id), ActorStopped(f"{processes.name} was stopped: {why}"))
                else:
                    ready.append((rank, processes.refs[rank]))
            inner = self._start(ready)
            for _, ref in ready:
                peer = node.peer_at(ref)
                with peer.lock:
                    if not peer.routing and peer.link is None and peer.dead is None and peer.outbox.kept:
                        node.routing.begin(peer)
        launched.follow(inner)

    def _note(self, restart: Restart) -> None:
        self.restarts.append(restart)
        for listener in self.listeners:
            Future.completed(restart).add_done_callback(lambda future, call=listener: call(future.get()))  # type: ignore[misc]

    # by policy, on the I/O thread

    def keep(self, actor_id: int, rank: int, error: MeshFailure) -> bool:
        """Of supervision: whether what has failed will be restarted."""
        policy, processes = self.policy, self._processes
        if policy is None or processes.stopped or isinstance(error, Unreachable) or self._node.closed:
            return False
        now = self._node.io.loop.time()
        sentence = error.reason.partition("\n")[0].removesuffix("; its last output:")
        if self._timer is None:
            delay = policy.next_delay(self._history, now)
            if delay is None:
                done = policy.recent(self._history, now)
                amend(error, f"it was restarted {done} times within {policy.within:g} s, and is not restarted again")
                return False
            self._history = [time for time in self._history if now - time < policy.within] + [now]
            self._due = now + delay
            self._timer = self._node.io.loop.call_later(delay, self._fire)
        self._waiting[actor_id, rank] = sentence
        soon = f"it is restarted in {max(self._due - now, 0.0):.2g} s"
        amend(error, soon)
        done = policy.recent(self._history, now)
        logger.warning("%s; %s (restart %d of %d in %g s)", sentence, soon, done, policy.max_restarts, policy.within)
        return True

    def _fire(self) -> None:
        """The wait is over."""
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        processes = self._processes
        if processes.stopped or self._node.closed:
            return
        reason = next(iter(waiting.values()))
        try:
            with renewing:
                self.respawn(None, range(len(processes.refs)), reason, False)
                for members in processes.members:
                    ranks = [rank for actor_id, rank in waiting if actor_id == members.actor_id]
                    if ranks and not members.stopped:
                        respawn_actors(members, None, ranks, reason)
                        if not any(actor_id == 0 for actor_id, _ in waiting):
                            self._note(Restart(max(ref.epoch for ref in processes.refs), tuple(ranks), False, reason))
        except RoostError:
            logger.exception("mesh %r could not be restarted", processes.name)

    def stop(self) -> None:
        """The mesh has been stopped: nothing is restarted any more."""
        if self._timer is not None:
            self._node.io.call(self._timer.cancel)


def respawn_actors(members: Members, ranks: Sequence[int] | None, among: Sequence[int], reason: str) -> Future[Any]:
    """Spawn failed actors anew on their processes, which live: those given, or all that have failed `among` these."""
    node, owned = members.home, members.owned
    if node is None or owned is None or members.plan is None:
        raise RoostError(f"{members.name!r} was spawned by another process: only that one can respawn it")
    with renewing:
        if node.closed:
            raise node.left()
        if members.stopped:
            raise ActorStopped(f"mesh {members.name!r} has been stopped: {members.stopped}; spawn it anew")
        if ranks is not None:
            for rank in ranks:
                if node.peer_at(members.refs[rank]).dead is not None:
                    raise ValueError(f"the process of rank {rank} of {members.name!r} is dead: respawn the ProcMesh")
                if rank not in owned.broken:
                    raise ValueError(f"rank {rank} of {members.name!r} lives: only actors that failed are respawned")
        candidates = sorted(among if ranks is None else set(ranks))
        chosen = [r for r in candidates if r in owned.broken and node.peer_at(members.refs[r]).dead is None]
        if not chosen:
            return members.started
        members.plan.check(members.name)
        restart = Restart(members.refs[0].epoch, tuple(chosen), True, reason)
        _supervisor().renew(owned, {members.refs[rank].proc_id: members.refs[rank].proc_id for rank in chosen})
        members.started = all_of(members.plan.send(node, members, chosen, restart=restart), make=lambda values: True)
        others = [ref for rank, ref in enumerate(members.refs) if rank not in chosen]
        wire = replace(restart, fresh=False).to_wire()
        told = [request(node, ref, "restored", wire, members.actor_id) for ref in others]
        return all_of([members.started, all_of(told, ignore=(RoostError,))])


def _supervisor() -> Supervisor:
    runtime = current_runtime()
    assert runtime is not None
    return runtime.supervisor
