"""The cell: an actor's home. One thread runs its `__init__`, its endpoints and its hooks, one message at a time.

The I/O thread puts messages into `queue`; the home thread takes them out. An actor whose endpoints are all sync
sleeps on the queue itself; one that has async endpoints runs an event loop (`asynccell.py`). Failures of meshes it
owns come before the messages that wait.
"""

from __future__ import annotations

import inspect
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from . import bodies
from .calls import WANTS_ANSWER, body_for
from .context import Message, enter
from .endpoint import EndpointInfo, endpoints_of
from .errors import ActorDied, ActorStopped, MeshFailure, SupervisionError, failure_record, portable
from .node import SMALL_FRAME, Node
from .peer import Peer
from .refs import ActorId
from .wire import frame as f
from .wire import pickling
from .wire.receivers import pack_for

logger = logging.getLogger("roost.actors")

QUICK = 200e-6  # endpoints faster than this have their answers gathered while more messages wait
CLEANUP_TIMEOUT = 10.0
_STOP = object()

STARTING, RUNNING, STOPPING, STOPPED, FAILED = "starting", "running", "stopping", "stopped", "failed"


class Cell:
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
        self.node = node
        self.actor_id = actor_id
        self.name = name
        self.rank = rank
        self.shape = shape
        self.owner = owner
        self.instance: Any = None
        self.state = STARTING
        self.error: BaseException | None = None
        self.reason = ""
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.backlog: deque[Any] = deque()  # passed over by concurrent calls while an async endpoint holds the actor
        self.urgent: deque[Callable[[], None]] = deque()
        self.endpoints: dict[str, EndpointInfo] = {}
        self.waiting: dict[tuple[int, int], Message] = {}  # by (caller, call): queued or running
        self.owned: list[Any] = []  # meshes this actor spawned
        self.deferred: set[Peer] = set()  # who has answers that may still wait for others
        self.supervising = 0  # async hooks that run: messages wait for them
        self.ended = threading.Event()
        self._on_end: list[Callable[[], object]] = []
        self.handled = self.failed = 0
        self.pid = os.getpid()
        self._make = make
        self._started = started
        self._wake: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Cell {self.name} rank {self.rank}: {self.state}, {self.queue.qsize() + len(self.backlog)} waiting>"

    # from the I/O thread

    def deliver(self, message: Message) -> None:
        """Put a message behind those that wait; one that comes too late is answered with the reason."""
        if message.flags & WANTS_ANSWER:
            self.waiting[message.peer.proc_id, message.call_id] = message
        self.queue.put(message)
        self._wake()
        if self.ended.is_set():
            self._refuse_rest()

    def cancel(self, peer: Peer, call: int, reason: str) -> bool:
        """Cancel a call: dropped if it waits, its task cancelled if it is async, else told to the endpoint."""
        message = self.waiting.get((peer.proc_id, call))
        if message is None:
            return False
        message.cancelled = reason
        if message.task is not None:
            self.cancel_task(message)
        elif message.running:
            self._answer_cancelled(message, "it is still running: a sync endpoint cannot be interrupted")
        return True

    def cancel_task(self, message: Message) -> None:
        """Cancel the task of a running async endpoint."""

    def supervise(self, failure: MeshFailure, answer: Callable[[bool, BaseException | None], None]) -> None:
        """Ask the actor's `__supervise__`, before messages that wait; `answer(handled, error)` is called after."""
        self.urgent.append(lambda: self._supervise(failure, answer))
        self.queue.put(None)
        self._wake()

    def stop(self, reason: str) -> None:
        """End after the messages that wait."""
        self.reason = reason
        self.queue.put(_STOP)
        self._wake()

    # the home thread

    def run(self) -> None:
        """The whole life of the actor; returns when it has ended."""
        try:
            cls, args, kwargs = self._make()
            definitions = endpoints_of(cls)
            self.endpoints = {name: definition.info() for name, definition in definitions.items()}
            asynchronous = any(info.is_async for info in self.endpoints.values()) or any(
                inspect.iscoroutinefunction(getattr(cls, hook, None)) for hook in ("__supervise__", "__cleanup__")
            )
        except Exception as error:  # noqa: BLE001 - a user's class may fail to unpickle in any way
            self._fail_start(error)
            return
        if asynchronous:
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
            if self.state == FAILED:
                self.backlog.append(message)  # to be refused
                break
            if message is None:
                continue
            if message is _STOP:
                break
            self.handle_sync(message)
            del message  # its buffers must not outlive it until the next one comes
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
        self._started(self, None)
        return True

    def _fail_start(self, error: BaseException) -> None:
        self.state, self.error = FAILED, error
        self.reason = f"its __init__ raised {type(error).__name__}: {error}"
        self._started(self, error)
        self._end()

    # one message

    def take(self, message: Message) -> EndpointInfo | None:
        """Count the message as consumed; None when it is not to be run."""
        peer = message.peer
        if peer.granting_for(self.actor_id).consumed(message.nbytes) and not message.flags & WANTS_ANSWER:
            self.node.grant(peer, self.actor_id)
        self.handled += 1
        if message.cancelled is not None:
            self._answer_cancelled(message, "it was never started")
            return None
        info = self.endpoints.get(message.method)
        if info is None:
            self.answer_error(message, AttributeError(f"{self.name} has no endpoint {message.method!r}"))
        return info

    def handle_sync(self, message: Message) -> None:
        """Run one message whose endpoint is sync, in this thread."""
        info = self.take(message)
        if info is None:
            return
        if self.deferred and info.seconds >= QUICK:
            self.send_deferred()  # whatever this endpoint does to the process, what was answered has left
        message.running = True
        enter(message)
        begin = time.perf_counter()
        try:
            args, kwargs = message.arguments()
            if info.explicit_port:
                args = (message.port(), *args)
            value = info.function(self.instance, *args, **kwargs)
            del args, kwargs
            if not info.explicit_port:
                self.answer(message, value, info)
        except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the caller
            self.raised(message, error)
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
        self.failed += 1
        if message.flags & WANTS_ANSWER:
            self.answer_error(message, error)
            return
        self.die(
            error,
            f"{self.name}.{message.method} raised {type(error).__name__}: {error}, and nobody waits for its answer",
        )

    def answer(self, message: Message, value: Any, info: EndpointInfo) -> None:
        """Send the value, gathered with others where the endpoint is quick and more messages wait."""
        self.leave_fork(None)
        if not message.flags & WANTS_ANSWER:
            return
        peer = message.peer
        packed = pack_for((peer.proc_id,), value, "return value")
        if self.waiting.pop((peer.proc_id, message.call_id), None) is None:
            return
        defer = info.seconds < QUICK and not self.queue.empty()
        if defer:
            self.deferred.add(peer)
        if not packed.buffers and not packed.definitions and len(packed.data) <= SMALL_FRAME:
            messages, nbytes = peer.granting_for(self.actor_id).told()
            envelope = f.packb((None, message.call_id, self.actor_id, messages, nbytes))
            try:
                self.node.post_small(peer, f.REPLY, envelope, packed.data, message.rank, defer)
            except MeshFailure as error:
                logger.debug("the caller of %s.%s is gone: %s", self.name, message.method, error)
            return
        body = body_for(self.node, packed, (peer,)) if packed.buffers else bodies.inline(packed)
        messages, nbytes = peer.granting_for(self.actor_id).told()
        envelope = f.packb([body.layout, message.call_id, self.actor_id, messages, nbytes])
        try:
            self.node.post(peer, f.REPLY, envelope, body, rank=message.rank, defer=defer)
        except MeshFailure as error:
            logger.debug("the caller of %s.%s is gone: %s", self.name, message.method, error)

    def send_deferred(self) -> None:
        """Send the answers that were gathered."""
        while self.deferred:
            link = self.deferred.pop().link
            if link is not None:
                link.flush()

    def answer_error(self, message: Message, error: BaseException, **more: Any) -> None:
        """Send a failure."""
        if self.waiting.pop(message.key, None) is None:
            return
        record = failure_record(error, self.name, message.method, self.node.host, os.getpid()) | more
        try:
            packed = pickling.pack((portable(error), portable(error.__cause__)), "exception")
        except Exception:  # noqa: BLE001 - then it arrives as its text
            packed = pickling.Packed(b"", [], ())
        body = bodies.inline(packed)
        messages, nbytes = message.peer.granting_for(self.actor_id).told()
        envelope = f.packb([body.layout, message.call_id, self.actor_id, messages, nbytes, record])
        try:
            self.node.post(message.peer, f.ERROR, envelope, body, rank=message.rank)
        except MeshFailure as gone:
            logger.debug("the caller of %s.%s is gone: %s", self.name, message.method, gone)

    def _answer_cancelled(self, message: Message, how: str) -> None:
        self.answer_error(
            message, SupervisionError(f"{self.name}.{message.method} was cancelled: {how}"), cancelled=how
        )

    # supervision

    def _supervise(self, failure: MeshFailure, answer: Callable[[bool, BaseException | None], None]) -> None:
        hook = getattr(self.instance, "__supervise__", None)
        if inspect.iscoroutinefunction(hook):
            from .asynccell import supervise_async

            supervise_async(self, hook, failure, answer)
            return
        enter(Message.of_cell(self))
        try:
            handled = bool(hook(failure)) if hook is not None else False
        except Exception as error:  # noqa: BLE001 - a hook that raises has not handled it
            answer(False, error)
            return
        answer(handled, None)

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
        self.urgent.append(lambda: self.die(error, reason))
        self.queue.put(None)
        self._wake()

    # the end

    def finish(self) -> None:
        """Stop what the actor owns, run `__cleanup__`, refuse what is left."""
        if self.state != FAILED:
            self.state = STOPPING
        self.stop_owned()
        self.cleanup()
        if self.state != FAILED:
            self.state = STOPPED
        self._end()

    def stop_owned(self) -> None:
        """Stop the meshes this actor spawned, the youngest first."""
        for mesh in reversed(self.owned):
            try:
                mesh.stop(f"{self.name}, which spawned it, has ended").get(timeout=CLEANUP_TIMEOUT)
            except Exception:
                logger.warning("%s could not stop %r", self.name, mesh, exc_info=True)
        self.owned.clear()

    def cleanup(self) -> None:
        """Run `__cleanup__`."""
        hook = getattr(self.instance, "__cleanup__", None)
        if hook is None:
            return
        enter(Message.of_cell(self))
        try:
            hook(self.error)
        except Exception:
            logger.exception("%s: __cleanup__ raised", self.name)

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
        with self._lock:
            while True:
                try:
                    message = self.backlog.popleft() if self.backlog else self.queue.get_nowait()
                except queue.Empty:
                    return
                if isinstance(message, Message) and message.flags & WANTS_ANSWER:
                    self.answer_error(message, self.gone(), gone=True)

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
        """Depth of the mailbox and counts, for eyes and tests."""
        return {
            "name": self.name,
            "rank": self.rank,
            "state": self.state,
            "waiting": self.queue.qsize() + len(self.backlog),
            "handled": self.handled,
            "failed": self.failed,
        }
