"""Supervision: who hears of a failure, and when nobody did.

Everything spawned has one owner: the actor that spawned it, or the program. A failure goes to the owner's
`__supervise__`. Where nobody handled it there it is held, until
  - its exception has been raised out of some `get()` or `await`: then it is handled (unless the policy says that only
    `__supervise__` handles);
  - the futures that would raise it have all been collected, or `FAULT_GRACE` seconds have passed: then the owner
    fails in turn, and its owner is asked; at the top stands `roost.actors.unhandled_fault_hook`.
What a `Keeper` starts anew goes to nobody.

Runs on the I/O thread; hooks run on the home thread of their actor, the fault hook on the callback thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from .errors import OWNS, ActorDied, ActorStopped, MeshFailure
from .faults import Faults
from .node import Node
from .peer import Peer
from .policy import policy
from .refs import ROOT_ACTOR, ActorId

logger = logging.getLogger("roost.supervision")

FAULT_GRACE = float(os.environ.get("ROOST_FAULT_GRACE", "5"))  # seconds a failure is held for somebody to see it
FAILURES = 10_000  # failures of actors that are remembered, for calls that tell of them later
# Seconds without a word after which a dead process's socket counts as read; a child it forked may hold it open …
DYING_WAIT = 0.05
DYING_MOST = 2.0  # … and how long its last words may take, on a machine that is busy


class Ended(Protocol):
    """How a process ended; `roost.mesh.launch.ExitReport` is one."""

    @property
    def name(self) -> str: ...
    @property
    def stderr_tail(self) -> tuple[str, ...]: ...
    def sentence(self) -> str: ...


class Keeper(Protocol):
    """Starts anew what has failed, where its policy says so."""

    def keep(self, actor_id: int, rank: int, error: MeshFailure) -> bool:
        """Whether the rank will be started anew; says so in the error's text, or why not. `actor_id` 0: a process."""
        ...


class Owned:
    """Something that was spawned here, as its owner's process knows it."""

    __slots__ = ("actor_id", "broken", "keeper", "name", "owner", "ranks", "stopping")

    def __init__(
        self, name: str, owner: ActorId, ranks: dict[int, int], actor_id: int = 0, keeper: Keeper | None = None
    ) -> None:
        self.name = name
        self.keeper = keeper
        self.owner = owner
        self.ranks = ranks  # by process
        self.actor_id = actor_id  # 0: it is the processes themselves
        self.stopping = ""
        self.broken: dict[int, MeshFailure] = {}

    def __repr__(self) -> str:
        what = "actors" if self.actor_id else "processes"
        return f"<Owned {what} {self.name}, {len(self.ranks)} ranks{', stopping' if self.stopping else ''}>"


class Failure:
    """One failure and what has become of it."""

    def __init__(self, supervisor: Supervisor, error: MeshFailure | None, owner: ActorId) -> None:
        self.error = error  # None: a call has told of it before the news itself has come
        self.owner = owner
        self.handled = False
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._holders = 0
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        name = self.error.mesh_name if self.error is not None else "an actor"
        return f"<Failure of {name}: {'handled' if self.handled else 'held'}>"

    def hold(self) -> None:
        """A future will raise it."""
        with self._lock:
            self._holders += 1

    def handle(self) -> None:
        """Its owner has handled it."""
        self.handled = True

    def delivered(self) -> None:
        """It was raised out of a `get()` or `await`: somebody knows."""
        if policy().told_is_handled:
            self.handle()

    def dropped(self) -> None:
        """A future that would have raised it is gone."""
        with self._lock:
            self._holders -= 1
            over = self._holders == 0 and not self.handled and not self._over
        if over and not self._supervisor.node.closed:
            self._supervisor.node.io.call(self.give_up)

    def start_holding(self) -> None:
        """Nobody handled it at once; wait for somebody to see it."""
        if not self.handled:
            self._timer = self._supervisor.node.io.loop.call_later(FAULT_GRACE, self.give_up)

    def give_up(self) -> None:
        """Nobody saw it: the owner fails."""
        if self._timer is not None:
            self._timer.cancel()
        if self.handled or self._over or self.error is None:
            return
        self._over = True
        self._supervisor.escalate(self)


class Supervisor:
    """The failures that one process hears of."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.owned: list[Owned] = []
        self.held: list[Failure] = []
        self.reports: dict[int, Ended] = {}
        self.actors: dict[tuple[int, int], Failure] = {}  # of actors, by (actor, process)
        self.faults = Faults(node.io)
        self.ending = False  # the program ends: what ends now was to end

    def own(self, owned: Owned) -> Owned:
        """Remember something that was spawned here."""
        self.owned.append(owned)
        return owned

    def disown(self, proc_ids: set[int]) -> None:
        """Processes have been stopped: forget them, and the actors that lived on them alone."""
        self.owned = [owned for owned in self.owned if not (owned.stopping and set(owned.ranks) <= proc_ids)]
        self._forget_over()

    def disown_actors(self, owned: Owned) -> None:
        """Actors have been stopped, on processes that live on."""
        if owned in self.owned:
            self.owned.remove(owned)
        for proc_id in owned.ranks:
            self.actors.pop((owned.actor_id, proc_id), None)

    def forget(self, proc_id: int) -> None:
        """A process has been dead for long."""
        self.reports.pop(proc_id, None)
        self.actors = {key: failure for key, failure in self.actors.items() if key[1] != proc_id}

    def _forget_over(self) -> None:
        self.held = [failure for failure in self.held if not (failure.handled or failure._over)]

    # deaths of processes

    def exited(self, proc_id: int, report: Ended, planned: bool, reason: str) -> None:
        """An agent tells that a process has ended. What it had still said is read first."""
        if proc_id in self.reports:
            return
        self.reports[proc_id] = report
        if self.ending and not planned:
            planned, reason = True, "the program ends"
        link = self.node.routing.links.get(proc_id)
        if link is None or link.closed:
            self._bury(proc_id, report, planned, reason)
        else:
            self._poll(proc_id, report, planned, reason, time.monotonic())

    def _poll(self, proc_id: int, report: Ended, planned: bool, reason: str, since: float) -> None:
        link = self.node.routing.links.get(proc_id)
        now = time.monotonic()
        if link is None or link.closed or now > max(since, link.heard) + DYING_WAIT or now > since + DYING_MOST:
            self._bury(proc_id, report, planned, reason)
        else:
            self.node.io.loop.call_later(0.001, self._poll, proc_id, report, planned, reason, since)

    def _bury(self, proc_id: int, report: Ended, planned: bool, reason: str) -> None:
        peer = self.node.peer(proc_id, report.name)
        error: MeshFailure
        if planned:
            error = ActorStopped(f"{report.name} was stopped: {reason}", mesh_name=report.name)
        else:
            error = ActorDied(death_sentence(report), mesh_name=report.name, report=report)
            self._fail_owners(proc_id, error)
        self.node.bury(peer, error)

    def unreachable(self, peer: Peer, error: MeshFailure) -> None:
        """A peer was given up; its owner hears of it as of a death."""
        self._fail_owners(peer.proc_id, error)

    def renew(self, owned: Owned, moved: dict[int, int]) -> None:
        """What is owned here has been started anew, in processes that take the place of others (or in the same ones):
        what it failed of is over, and handled. From any thread."""
        for proc_id in moved:
            rank = owned.ranks.get(proc_id)
            if rank is not None:
                self.actors.pop((owned.actor_id, proc_id), None)
                failure = getattr(owned.broken.pop(rank, None), "_roost_failure", None)
                if failure is not None:
                    failure.handle()
        owned.ranks = {moved.get(proc_id, proc_id): rank for proc_id, rank in owned.ranks.items()}

    def _fail_owners(self, proc_id: int, error: MeshFailure) -> None:
        told: set[ActorId] = set()
        kept: dict[int, bool] = {}  # by keeper: whether it starts the process anew, and with it the actors
        for owned in sorted(self.owned, key=lambda o: o.actor_id):  # processes first: their death is the cause
            rank = owned.ranks.get(proc_id)
            if rank is None or owned.stopping or rank in owned.broken:
                continue
            owned.broken[rank] = error
            if owned.keeper is not None:
                if owned.actor_id == 0:
                    kept[id(owned.keeper)] = owned.keeper.keep(0, rank, error)
                if kept.get(id(owned.keeper)):
                    continue
            if owned.owner in told:
                continue
            told.add(owned.owner)
            failure = self.fail(owned, rank, error)
            if not hasattr(error, "_roost_failure"):
                error._roost_failure = failure  # type: ignore[attr-defined]

    # failures of actors

    def failure_of(self, actor_id: int, proc_id: int) -> Failure:
        """The failure of one actor, whether or not the news of it has come yet."""
        found = self.actors.get((actor_id, proc_id))
        if found is None:
            while len(self.actors) >= FAILURES:
                del self.actors[next(iter(self.actors))]
            found = self.actors[actor_id, proc_id] = Failure(self, None, ActorId(0, 0))
        return found

    def actor_failed(
        self, actor_id: int, rank: int, name: str, reason: str, record: dict[str, Any], proc_id: int
    ) -> None:
        """A process tells that an actor there has failed."""
        for owned in self.owned:
            current = owned.actor_id == actor_id and owned.ranks.get(proc_id) == rank
            if current and not owned.stopping and rank not in owned.broken:
                own = record.get("type", "").startswith("roost.actors.errors.")  # its text says all
                trace = "" if own else record.get("traceback", "").rstrip()
                text = f"{name} at rank {rank} has failed: {reason}" + (f"\n{trace}" if trace else "")
                error = ActorDied(text, mesh_name=name, crashed_ranks=(rank,))
                owned.broken[rank] = error
                if owned.keeper is not None and owned.keeper.keep(actor_id, rank, error):
                    self.actors.pop((actor_id, proc_id), None)
                    return
                error._roost_failure = self.fail(owned, rank, error, self.failure_of(actor_id, proc_id))  # type: ignore[attr-defined]
                return

    def fail(self, owned: Owned, rank: int, cause: MeshFailure, failure: Failure | None = None) -> Failure:
        """Tell the owner; hold the failure where it is not handled there."""
        error = MeshFailure(
            str(cause.args[0]), mesh_name=owned.name, crashed_ranks=(rank,), cause=cause, report=cause.exit_report
        )
        failure = failure or Failure(self, None, owned.owner)
        failure.error, failure.owner = error, owned.owner
        self._forget_over()
        self.held.append(failure)
        cell = self.node.cells.get(owned.owner.actor_id)
        if cell is None:
            failure.start_holding()
            return failure

        def answered(handled: bool, problem: BaseException | None) -> None:
            if problem is not None:
                amend(error, f"{cell.name}.__supervise__ raised {type(problem).__name__}: {problem}")
            if handled:
                failure.handle()
            else:
                self.node.io.call(failure.start_holding)

        cell.supervise(error, answered)
        return failure

    def escalate(self, failure: Failure) -> None:
        """The owner did not handle it and nobody saw it."""
        owner, error = failure.owner, failure.error
        if error is None:
            return
        cell = self.node.cells.get(owner.actor_id)
        if cell is not None:
            cell.fail_from_outside(error, f"{error.mesh_name}{OWNS}{error.reason}")
        elif owner.actor_id == ROOT_ACTOR:
            self.faults.report(error)

    def settle(self) -> list[MeshFailure]:
        """At the end of the program: the failures that nobody has seen."""
        unseen = self.faults.close() + [
            failure.error
            for failure in self.held
            if failure.error is not None and not failure.handled and not failure._over
        ]
        self.held.clear()
        return unseen


def amend(error: MeshFailure, more: str) -> None:
    """Say more in an error that nobody has seen yet."""
    text = f"{error.reason}\n{more}" if "\n" in error.reason else f"{error.reason}; {more}"
    error.args, error.reason = (text,), text


def death_sentence(report: Ended) -> str:
    """The exit report in one sentence, with the last lines of the process's output."""
    text = report.sentence()
    if report.stderr_tail:
        text += "; its last output:\n    " + "\n    ".join(telling_lines(report.stderr_tail))
    return text


def telling_lines(tail: Sequence[str], most: int = 8) -> Sequence[str]:
    """The last lines of a process's output, or the first of its crash: there the innermost frame stands on top."""
    crashes = [i for i, line in enumerate(tail) if line.startswith("Fatal Python error")]
    return tail[crashes[-1] : crashes[-1] + most] if crashes else tail[-most:]
