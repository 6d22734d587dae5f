"""The cell: an actor's home. One thread runs its `__init__`, its endpoints and its hooks, one message at a time.

The I/O thread puts messages into `queue`; the home thread takes them out. An actor whose endpoints are all sync
sleeps on the queue itself; one that has async endpoints runs an event loop (`asynccell.py`). Failures of meshes it
owns come before the messages that wait. Where a class has lanes, batched endpoints or a bounded mailbox, `intake`
decides on the I/O thread where a message goes; all others have none.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from . import hooks
from .answers import QUICK, Answers, Ended
from .calls import MANY, WANTS_ANSWER
from .context import Message, enter
from .endpoint import EndpointInfo, endpoints_of, undecorated
from .errors import ActorDied, ActorStopped, CallCancelled, MeshFailure, SupervisionError
from .expiry import Expiry
from .intake import Intake, intake_of
from .node import Node
from .policy import policy
from .refs import ActorId
from .running import run_special
from .travel import failure_record

logger = logging.getLogger("roost.actors")

CLEANUP_TIMEOUT = 10.0
_STOP = object()
_HOOKS = ("__supervise__", "__cleanup__", "__restore__")

STARTING, RUNNING, STOPPING, STOPPED, FAILED = "starting", "running", "stopping", "stopped", "failed"


class Cell(Answers):
    """One actor of this process. `run()` is the life of its home thread."""

    def __init__(
        self,
        node: Node,
        actor_id: int,
        name: str,
        rank: int,
        shape: Any,
        owner: ActorId,
        *,
        make: Callable[[], tuple[type, tuple[Any, ...], dict[str, Any]]],
        started: Callable[[Cell, BaseException | None], None],
    ) -> None:
        super().__init__(node, actor_id, name)
        self.rank = rank
        self.shape = shape
        self.owner = owner
        self.class_name = ""
        self.instance: Any = None
        self.state = STARTING
        self.error: BaseException | None = None
        self.reason = ""
        self.backlog: deque[Any] = deque()  # passed over by concurrent calls while an async endpoint holds the actor
        self.urgent: deque[Callable[[], None]] = deque()
        self.endpoints: dict[str, EndpointInfo] = {}
        self.intake: Intake | None = None
        self.owned: list[Any] = []  # meshes this actor spawned
        self._prune_at = 16
        self.now: Message | None = None  # what the home thread runs, but for tasks …
        self.tasks: dict[asyncio.Task[None], Message] = {}  # … which are these
        self.supervising = 0  # async hooks that run: messages wait for them
        self.killed = False  # it ends without `__cleanup__`
        self.has_loop = False
        self.ended = threading.Event()
        self._on_end: list[Callable[[], object]] = []
        self.handled = self.failed = 0
        self._home = 0
        self._make = make
        self._started = started
        self._expiry = Expiry(self)
        self._wake: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Cell {self.name} rank {self.rank}: {self.state}, {self.depth()} waiting>"

    def depth(self) -> int:
        """How many messages wait for the home thread."""
        return self.queue.qsize() + len(self.backlog)

    def own(self, mesh: Any) -> None:
        """Remember a mesh that this actor spawned, and forget those that have been stopped since."""
        if len(self.owned) >= self._prune_at:
            self.owned = [known for known in self.owned if not known._stopped]
            self._prune_at = 2 * len(self.owned) + 16
        self.owned.append(mesh)

    # from the I/O thread

    def deliver(self, message: Message) -> None:
        """Put a message behind those that wait; one that comes too late is answered with the reason."""
        if message.flags & WANTS_ANSWER:
            self.waiting[message.peer.proc_id, message.call_id] = message
            if message.deadline is not None:
                self._expiry.note(message.deadline)
        if self.intake is None:
            self.queue.put(message)
            self._wake()
        elif (placed := self.intake.place(message)) is not None:
            self.queue.put(placed)
            self._wake()
        if self.ended.is_set():
            self._refuse_rest()

    def supervise(self, failure: MeshFailure, answer: Callable[[bool, BaseException | None], None]) -> None:
        """Ask the actor's `__supervise__`, before messages that wait; `answer(handled, error)` is called after."""
        self.urge(lambda: hooks.supervise(self, failure, answer))

    def urge(self, action: Callable[[], None]) -> None:
        """Do something on the home thread, before messages that wait. From any thread."""
        self.urgent.append(action)
        self.queue.put(None)
        self._hurry()

    def stop(self, reason: str) -> None:
        """End after the messages that wait."""
        self.reason = reason
        self.queue.put(_STOP)
        self._hurry()

    def _hurry(self) -> None:
        if self.intake is not None:
            self.intake.hurry()
        self._wake()

    # the home thread

    def run(self) -> None:
        """The whole life of the actor; returns when it has ended."""
        self._home = threading.get_ident()
        try:
            cls, args, kwargs = self._make()
            self.class_name = cls.__name__
            self.endpoints = {name: definition.info() for name, definition in endpoints_of(cls).items()}
            self.has_loop = any(info.is_async and not info.lane for info in self.endpoints.values()) or any(
                inspect.iscoroutinefunction(getattr(cls, hook, None)) for hook in _HOOKS
            )
            intake = intake_of(self, cls)
            if intake is not None:
                intake.install()
        except Exception as error:  # noqa: BLE001 - a user's class may fail to unpickle in any way
            self._fail_start(error)
            return
        if self.has_loop:
            from .asynccell import run_async

            run_async(self, cls, args, kwargs)
        else:
            self._run_sync(cls, args, kwargs)

    def _run_sync(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.construct(cls, args, kwargs):
            return
        get, empty = self.queue.get, self.queue.empty
        readers = self.node.io.readers
        self._wake = lambda: readers.wake(self)
        while True:
            if empty():
                try:
                    readers.wait(self, self._waits, None)
                except Exception as error:  # noqa: BLE001 - a signal handler of the user's raised while it was idle
                    self.die(error, f"a signal handler raised {type(error).__name__}: {error}")
                    break
            message = get()
            while self.urgent:
                self.urgent.popleft()()
            if self.state == FAILED or message is _STOP:
                break
            if message is None:
                continue
            self.now = message
            self.handle_sync(message)
            message = self.now = None  # its buffers must not outlive it until the next one comes
            if self.state == FAILED:
                break
        self.finish()

    def _waits(self) -> bool:
        return not self.queue.empty()

    def construct(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Run `__init__`; False when it failed, which ends the actor."""
        enter(Message.of_cell(self))
        try:
            self.instance = cls(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a user's constructor may raise anything
            self._fail_start(error)
            return False
        except SystemExit as error:
            self._fail_start(RuntimeError(f"__init__ called sys.exit({error.code!r})"))
            return False
        self.state = RUNNING
        if self.intake is not None:
            self.intake.open()
        self._started(self, None)
        return True

    def _fail_start(self, error: BaseException) -> None:
        self.state, self.error = FAILED, error
        self.reason = f"its __init__ raised {type(error).__name__}: {error}"
        self._started(self, error)
        if self.intake is not None:
            self.intake.end(at_once=True)
        self._end()

    # one message

    def take(self, message: Message) -> EndpointInfo | None:
        """Count the message as consumed; None when it is not to be run."""
        peer = message.peer
        if peer is None:  # a batch: its messages are taken when it begins
            return self.endpoints[message.method]  # type: ignore[unreachable]
        if peer.granting_for(self.actor_id).consumed(message.nbytes) and (
            not message.flags & WANTS_ANSWER or self.intake is not None
        ):
            self.node.grant(peer, self.actor_id)
        self.handled += 1
        message.running = True  # before the look at `cancelled`: `give_up` writes and looks the other way round
        if (message.cancelled is not None or message.deadline is not None) and message.over:
            self.too_late(message, "")
            return None
        info = self.endpoints.get(message.method) or self.method(message.method)
        if info is None:
            self.answer_error(message, AttributeError(f"{self.name} has no endpoint {message.method!r}"))
        return info

    def method(self, name: str) -> EndpointInfo | None:
        """A method without `@endpoint` that is called as one, if `name` says so."""
        info = undecorated(type(self.instance), name)
        if info is not None:
            self.endpoints[name] = info
            if info.is_async and not self.has_loop:
                info.plain = False
        return info

    def handle_sync(self, message: Message) -> None:
        """Run one message whose endpoint is sync, in this thread."""
        info = self.take(message)
        if info is None:
            return
        if self.deferred and info.seconds >= QUICK:
            self.send_deferred()  # whatever this endpoint does to the process, what was answered has left
        enter(message)
        begin = time.perf_counter()
        try:
            if info.plain and message.flags < MANY:
                args, kwargs = message.arguments()
                value = info.function(self.instance, *args, **kwargs)
                del args, kwargs
                self.answer(message, value, info)
            else:
                run_special(self, message, info)
        except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the caller
            self.raised(message, error)
        if not info.lane:
            info.seconds = time.perf_counter() - begin

    def leave_fork(self, error: BaseException | None) -> None:
        """In a child that an endpoint forked and that has come back here: it is not the actor, and must not answer."""
        if os.getpid() == self.pid:
            return
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else int(error is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def raised(self, message: Message, error: BaseException) -> None:
        """An endpoint raised: the caller gets it; where there is no caller, the actor fails."""
        self.leave_fork(error)
        if isinstance(error, CallCancelled | asyncio.CancelledError) and message.over:
            self.too_late(message, _how(error))
            return
        self.failed += 1
        deadly = isinstance(error, SystemExit | KeyboardInterrupt) and policy().exit_kills
        if message.flags & WANTS_ANSWER and not deadly:
            self.answer_error(message, error)
            return
        ending = "which ends it" if deadly else "and nobody waits for its answer"
        reason = f"{self.name}.{message.method} raised {type(error).__name__}: {error}, {ending}"
        if threading.get_ident() == self._home:
            self.die(error, reason)
        else:
            self.fail_from_outside(error, reason)
        if deadly:
            dead = ActorDied(f"{self.name} at rank {self.rank} has failed: {reason}", mesh_name=self.name)
            self.answer_error(message, dead, gone="failed")

    def die(self, error: BaseException, reason: str) -> None:
        """The actor fails: its owner is told, messages that wait are answered with the reason."""
        if self.state == FAILED:
            return
        self.state, self.error, self.reason = FAILED, error, reason
        record = failure_record(error, self.name, "", self.node.host, os.getpid())
        owner = self.node.peer(self.owner.proc_id)
        self.node.event(owner, "actor failed", self.actor_id, self.owner.actor_id, self.rank, self.name, reason, record)

    def fail_from_outside(self, error: BaseException, reason: str) -> None:
        """Fail on the home thread, before messages that wait."""
        self.urge(lambda: self.die(error, reason))

    # the end

    def finish(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """End the lanes, stop what the actor owns, run `__cleanup__`, refuse what is left. On the home thread."""
        self._end_what_it_has()
        hooks.cleanup(self, loop)
        if self.state != FAILED:
            self.state = STOPPED
        self._end()

    def _end_what_it_has(self) -> None:
        """Lanes end, and the meshes that this actor spawned, the youngest first."""
        if self.state != FAILED:
            self.state = STOPPING
        if self.intake is not None:
            self.intake.end(at_once=self.state == FAILED)
        for mesh in reversed(self.owned):
            try:
                mesh.stop(f"{self.name}, which spawned it, has ended").get(timeout=CLEANUP_TIMEOUT)
            except Exception:
                logger.warning("%s could not stop %r", self.name, mesh, exc_info=True)
        self.owned.clear()

    def _end(self) -> None:
        self.instance = None
        self.ended.set()
        self._refuse_rest()
        while self._on_end:
            self._on_end.pop()()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the actor has ended, from whatever thread; at once if it has."""
        self._on_end.append(callback)
        if self.ended.is_set():
            while self._on_end:
                self._on_end.pop()()

    def _refuse_rest(self) -> None:
        """Every call that has not been answered is answered now, whether it waits, runs on, or its port was kept."""
        with self._lock:
            self.backlog.clear()
            while not self.queue.empty():
                self.queue.get_nowait()
            for message in list(self.waiting.values()):
                self.refuse(message)

    def refuse(self, message: Message) -> None:
        """Answer a call that the actor's end has overtaken."""
        self.answer_error(message, self.gone(), gone="failed" if self.state == FAILED else "stopped")

    def gone(self) -> SupervisionError:
        """Why calls to this actor cannot be answered any more."""
        if self.state == FAILED:
            text = f"{self.name} at rank {self.rank} has failed: {self.reason}{self._trace()}"
            error: SupervisionError = ActorDied(text, mesh_name=self.name)
        else:
            error = ActorStopped(f"{self.name} was stopped: {self.reason or 'its process ends'}", mesh_name=self.name)
        error.crashed_ranks = (self.rank,)
        return error

    def _trace(self) -> str:
        """Where it failed, for those who cannot look here."""
        if self.error is None or isinstance(self.error, MeshFailure):
            return ""
        trace: str = failure_record(self.error, self.name, "", self.node.host, os.getpid())["traceback"]
        return "\n" + trace.rstrip()

    def statistics(self) -> dict[str, Any]:
        """What waits and runs here, and counts since the actor was made, in plain values."""
        intake = self.intake
        lanes = {name: lane.statistics() for name, lane in intake.lanes.items()} if intake is not None else {}
        now = time.monotonic()
        waiting = [message.arrived for message in list(self.waiting.values()) if not message.running]
        return {
            "name": self.name,
            "rank": self.rank,
            "state": self.state,
            "waiting": self.depth() + sum(lane["waiting"] for lane in lanes.values()),
            "running": (self.now is not None) + len(self.tasks) + sum(lane["running"] for lane in lanes.values()),
            "handled": self.handled,
            "failed": self.failed,
            "dropped": intake.dropped if intake is not None else 0,
            "refused": intake.refused if intake is not None else 0,
            "oldest_wait_s": round(now - min(waiting, default=now), 6),
            "lanes": lanes,
        }


def _how(error: BaseException) -> str:
    """What became of a call that nobody waited for any more."""
    if isinstance(error, Ended):
        return str(error)
    return "it was interrupted" if isinstance(error, CallCancelled) else "its task was cancelled"
