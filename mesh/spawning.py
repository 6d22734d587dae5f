"""Asking the agents of hosts for processes, and what becomes of those that do not start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..actors import bodies
from ..actors.errors import ActorDied, RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.policy import WORKER_SETUP, policy
from ..actors.refs import ProcRef, new_id
from ..actors.requests import request
from ..actors.runtime import current_runtime
from ..actors.supervision import Failure
from ..actors.wire import pickling
from ..actors.wire.definitions import DEFINITIONS
from .commands import BootstrapCommand, started_by
from .gather import all_of
from .hostref import HostRef
from .procmesh import agent_peer


def common_options(
    env: Mapping[str, str | None] | None, preload: Sequence[str] | None, python: str | None
) -> dict[str, Any]:
    """What all processes of a mesh get of this program."""
    return {
        "env": dict(env or {}),
        "changed": changed_environment(),
        "preload": list(preload if preload is not None else default_preload()),
        "python": python,
        "cwd": os.getcwd(),
        "sys_path": import_path(),
        "setup": list(WORKER_SETUP),
        "policy": policy().to_wire(),
    }


def with_bootstrap(common: dict[str, Any], bootstrap: Callable[[], Any] | None) -> bodies.Body | None:
    """The function that they run first, pickled; what it refers to goes among the common options."""
    if bootstrap is None:
        return None
    packed = pickling.pack(bootstrap, "bootstrap")
    if packed.definitions:
        common["definitions"] = [[content, DEFINITIONS.blob(content)] for content in packed.definitions]
    return bodies.inline(packed)


class Starter:
    """Starts processes of one mesh, all of them or some again, always as they were asked for at first."""

    def __init__(
        self,
        node: Node,
        hosts: Sequence[HostRef],
        per_host: int,
        common: dict[str, Any],
        members: Sequence[dict[str, Any]],
        body: bodies.Body | None,
    ) -> None:
        self._node = node
        self._hosts = hosts
        self._per_host = per_host
        self._common = common
        self._members = members
        self._body = body

    def __repr__(self) -> str:
        return f"<Starter of {len(self._members)} processes on {len(self._hosts)} hosts>"

    def start(self, ranks: Sequence[tuple[int, ProcRef]]) -> Future[Any]:
        """Ask the agents for the processes of these ranks; done when they run."""
        node, news, futures = self._node, News(), []
        assert node.ref is not None
        common = {**self._common, "owner": node.ref.to_wire()}
        for group, host in enumerate(self._hosts):
            mine = [(rank, ref) for rank, ref in ranks if rank // self._per_host == group]
            if mine:
                members = [{**self._members[rank], "ref": ref.to_wire()} for rank, ref in mine]
                futures.append(spawn_on(node, host, [ref for _, ref in mine], common, members, self._body, news))
        return all_of(futures, make=lambda values: True)

    def place(self, rank: int) -> ProcRef:
        """Where the next process of this rank will be."""
        return self._hosts[rank // self._per_host].process(new_id(), self._members[rank]["ref"][1])


def spawn_on(
    node: Node,
    host: HostRef,
    refs: list[ProcRef],
    common: dict[str, Any],
    members: list[dict[str, Any]],
    body: bodies.Body | None,
    news: News,
) -> Future[Any]:
    """Ask one host's agent for its share. Until a process links here, what is sent to it waits."""
    near = host.node_id == node.node_id
    for ref in refs:
        peer = node.peer_at(ref)
        peer.watched = True  # the agent tells whoever asked for a process
        peer.routing = near  # it will link to us; elsewhere its agent relays, and holds until it is there
    future = request(node, agent_peer(node, refs[0]), "spawn", common, members, body=body)

    def answered() -> None:
        node.io.call(_settle, node, refs, future, near, news)

    if not future._when_done(answered):
        answered()
    return all_of([future], make=lambda values: _check(values[0], news))


END_TIMEOUT = 15.0  # seconds for an agent that was asked to end


def end_agent(node: Node, host: HostRef) -> Future[None]:
    """Ask an agent to end; done when it has, with all that ran under it, or after 15 s."""
    ended: Future[None] = Future()
    asked = request(node, host.agent(), "shutdown")

    def over(_: int = 0) -> None:
        ended.set_result(None)

    def answered() -> None:
        asked.exception()  # it has been heard of: the agent is gone already
        node.when_dead(host.agent_id, over)
        node.io.call(node.io.loop.call_later, END_TIMEOUT, over)

    if not asked._when_done(answered):
        answered()
    return ended


class News:
    """Of one spawn: whether somebody has heard from `initialized` what did not start, and what has become of it."""

    __slots__ = ("failures", "heard")

    def __init__(self) -> None:
        self.heard = False
        self.failures: list[Failure] = []

    def settle(self) -> None:
        """What was raised is handled; called when either has changed."""
        if self.heard:
            for failure in self.failures:
                failure.delivered()


def _settle(node: Node, refs: list[ProcRef], future: Future[Any], near: bool, news: News) -> None:
    """The agent has answered: give up those that did not start, find a route to those that did not link to us."""
    try:
        results = future._result()
    except RoostError as error:
        results = [str(error)] * len(refs)
    for ref, reason in zip(refs, results, strict=True):
        peer = node.peer_at(ref)
        if reason is not None:
            died = ActorDied(reason, mesh_name=ref.name)
            runtime = current_runtime()
            if runtime is not None and peer.dead is None:
                runtime.supervisor._fail_owners(ref.proc_id, died)
            failure = getattr(peer.dead or died, "_roost_failure", None)
            if failure is not None:
                news.failures.append(failure)
            node.bury(peer, died)
        elif near and peer.link is None and peer.dead is None:
            node.routing.begin(peer)
    news.settle()


def _check(results: list[str | None], news: News) -> None:
    wrong = [reason for reason in results if reason is not None]
    if wrong:
        news.heard = True
        news.settle()
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ActorDied(wrong[0] + more)


def member(
    ref: ProcRef,
    group: int,
    local: int,
    rank: int,
    local_size: int,
    size: int,
    command: BootstrapCommand | None,
    proc_bind: Sequence[Mapping[str, str]] | None,
) -> dict[str, Any]:
    """What differs between the processes of a mesh."""
    return {
        "ref": ref.to_wire(),
        "rank_env": {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(group),
        },
        **started_by(command, proc_bind[local] if proc_bind else {}),
    }


def import_path() -> list[str]:
    """Where this program imports from, for its workers; relative entries made absolute."""
    return [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path if not entry.endswith(".zip")]


_first_environment = dict(os.environ)


def remember_environment() -> None:
    """What the agents are started with."""
    global _first_environment
    _first_environment = dict(os.environ)


def changed_environment() -> dict[str, str]:
    """Variables that this program has set since its agents were started; workers get them too."""
    return {name: value for name, value in os.environ.items() if _first_environment.get(name) != value}


def default_preload() -> list[str]:
    """torch and numpy where this program has imported them: a fork shares them, an import takes a second."""
    wanted = ["numpy", "torch", "torch.distributed"]
    return [module for module in wanted if module.partition(".")[0] in sys.modules]


_names = iter(range(1 << 62))


def default_name() -> str:
    """A name for a mesh that was given none."""
    return f"procs{next(_names)}"
