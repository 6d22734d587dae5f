"""Answers: what an actor sends back for the calls it was given."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import weakref
from typing import TYPE_CHECKING, Any

from . import bodies
from .calls import NO_VALUE, WANTS_ANSWER
from .context import Message
from .endpoint import EndpointInfo
from .errors import CallCancelled, CallTimeout, MeshFailure, SupervisionError
from .mailbox import BoundedQueue
from .node import SMALL_FRAME, Node
from .peer import Peer
from .requests import body_for
from .travel import failure_record, portable
from .wire import frame as f
from .wire import pickling, receivers
from .wire.receivers import pack_for

if TYPE_CHECKING:
    from .streaming import Stream

logger = logging.getLogger("roost.actors")

QUICK = 200e-6  # endpoints faster than this have their answers gathered while more messages wait
PAST_DEADLINE = "its deadline passed"  # the reason of a call that was cancelled by its own deadline
THE_END = "its actor ends"  # … of one that the end of its actor has cancelled …
GONE = "its caller is gone"  # … and of one that nobody can be answered for


class Ended(CallCancelled):
    """Roost has ended a call that nobody waits for any more; the text says how far it had come."""


class Answers:
    """The calls that one actor owes an answer, and how they get it: exactly one each, whatever happens."""

    def __init__(self, node: Node, actor_id: int, name: str) -> None:
        self.node = node
        self.actor_id = actor_id
        self.name = name
        self.queue: queue.SimpleQueue[Any] | BoundedQueue = queue.SimpleQueue()  # what waits for the home thread
        self.waiting: dict[tuple[int, int], Message] = {}  # by (caller, call): queued or running
        self.deferred: set[Peer] = set()  # who has answers that may still wait for others
        self.streams: dict[tuple[int, int], Stream] = {}  # of generators that run, by (caller, call)
        self.pid = os.getpid()
        self._watched: set[int] = set()  # callers whose death ends streams

    def cancel(self, peer: Peer, call: int, reason: str) -> bool:
        """Cancel a call: dropped if it waits, its task cancelled if it is async, else told to the endpoint."""
        message = self.waiting.get((peer.proc_id, call))
        if message is None:
            return False
        self.give_up(message, reason)
        return True

    def expire(self, message: Message) -> None:
        """The deadline of a call has passed."""
        self.give_up(message, PAST_DEADLINE)

    def give_up(self, message: Message, reason: str) -> None:
        """Nobody waits for a message any more: end what runs of it, if that can be ended."""
        message.cancelled = reason
        stream = self.streams.get(message.key)
        if stream is not None:
            stream.wake()
        task = message.task
        if isinstance(task, asyncio.Task):
            if task.done():
                self.answer_cancelled(message, "its endpoint has returned, and its port was not used")
            else:
                cancel_soon(task)
        elif task is not None:
            task.cancel(message)
        elif message.running:
            self.answer_cancelled(message, "it is still running: a sync endpoint cannot be interrupted")
        else:
            self.answer_cancelled(message, "")
            message.data, message.buffers = b"", []

    def more(self, peer: Peer, call: int, total: int) -> None:
        """A caller has taken items of a stream: it may have sent `total` by now."""
        stream = self.streams.get((peer.proc_id, call))
        if stream is not None:
            stream.more(total)

    def watch(self, peer: Peer) -> None:
        """Streams of a caller that dies, or is out of reach for long, end; until `unwatch`."""
        self.node.vigil.heed(peer)
        if peer.proc_id in self._watched:
            return
        self._watched.add(peer.proc_id)
        mine = weakref.ref(self)

        def died(proc_id: int) -> None:
            cell = mine()
            for stream in list(cell.streams.values()) if cell is not None else ():
                if stream.message.peer.proc_id == proc_id and cell is not None:
                    cell.give_up(stream.message, GONE)

        self.node.when_dead(peer.proc_id, died)

    def unwatch(self, peer: Peer) -> None:
        """One stream of a caller has ended."""
        self.node.vigil.release(peer)

    def refuse(self, message: Message) -> None:
        """Answer a call that the actor's end has overtaken."""

    def leave_fork(self, error: BaseException | None) -> None:
        """In a child that an endpoint forked: it is not the actor, and must not answer."""

    def answer(self, message: Message, value: Any, info: EndpointInfo) -> None:
        """Send the value, gathered with others where the endpoint is quick and more messages wait."""
        if os.getpid() != self.pid:
            self.leave_fork(None)
        flags = message.flags
        if not flags & WANTS_ANSWER:
            return
        if message.deadline is not None and message.over:
            self.too_late(message, "it returned too late")
            return
        peer = message.peer
        if flags & NO_VALUE:
            value = None
        if receivers.wanted:
            packed = pack_for((peer.proc_id,), value, "return value")
        else:
            packed = pickling.pack(value, "return value")
        if self.waiting.pop((peer.proc_id, message.call_id), None) is None:
            return
        defer = info.seconds < QUICK and not self.queue.empty()
        if defer:
            self.deferred.add(peer)
        try:
            if not packed.buffers and not packed.definitions and len(packed.data) <= SMALL_FRAME:
                messages, nbytes = peer.granting_for(self.actor_id).told()
                envelope = f.packb((None, message.call_id, self.actor_id, messages, nbytes))
                self.node.post_small(peer, f.REPLY, envelope, packed.data, message.rank, defer)
            else:
                self._post(f.REPLY, message, packed, defer)
        except MeshFailure as error:
            logger.debug("the caller of %s.%s is gone: %s", self.name, message.method, error)
        except Exception:
            self.waiting[message.key] = message  # it is still owed an answer: what has just been raised
            raise

    def send_item(self, message: Message, item: Any) -> None:
        """Send one item of a streaming endpoint; raises MeshFailure when the caller is gone."""
        self.leave_fork(None)
        self._post(f.ITEM, message, pack_for((message.peer.proc_id,), item, "item"), False)

    def _post(self, kind: int, message: Message, packed: pickling.Packed, defer: bool) -> None:
        peer = message.peer
        body = body_for(self.node, packed, (peer,)) if packed.buffers else bodies.inline(packed)
        messages, nbytes = peer.granting_for(self.actor_id).told()
        envelope = f.packb([body.layout, message.call_id, self.actor_id, messages, nbytes])
        self.node.post(peer, kind, envelope, body, rank=message.rank, defer=defer)

    def send_deferred(self) -> None:
        """Send the answers that were gathered."""
        while self.deferred:
            try:
                link = self.deferred.pop().link
            except KeyError:  # a lane's thread was faster
                return
            if link is not None:
                link.flush()

    def failure(self, error: BaseException, method: str) -> tuple[dict[str, Any], Any, Any]:
        """What tells of a failure: plain values, the exception, and its cause, the last two ready to be pickled."""
        record = failure_record(error, self.name, method, self.node.host, os.getpid())
        cause = portable(error.__cause__)
        for parts in ((portable(error), cause), (portable(error), None), (None, None)):
            try:
                pickling.pack(parts, "exception")
            except Exception:  # noqa: BLE001, S112 - a user's exception may not pickle: then it arrives as its text
                continue
            return record, *parts
        return record, None, None

    def answer_error(self, message: Message, error: BaseException, **more: Any) -> None:
        """Send a failure; `more` is added to what tells of it. Raises nothing."""
        if self.waiting.pop(message.key, None) is None:
            return
        try:
            self._answer_error(message, error, more)
        except MeshFailure as gone:
            logger.debug("the caller of %s.%s is gone: %s", self.name, message.method, gone)
        except Exception:
            logger.exception("%s.%s: the caller could not be told of %r", self.name, message.method, error)

    def _answer_error(self, message: Message, error: BaseException, more: dict[str, Any]) -> None:
        record, *parts = self.failure(error, message.method)
        record |= more
        packed = pickling.pack(tuple(parts), "exception")
        body = bodies.inline(packed)
        messages, nbytes = message.peer.granting_for(self.actor_id).told()
        fields = [body.layout, message.call_id, self.actor_id, messages, nbytes, record]
        try:
            envelope = f.packb(fields)
        except (UnicodeEncodeError, TypeError, ValueError):  # lone surrogates in a text
            fields[5] = {key: ascii(text) if isinstance(text, str) else text for key, text in record.items()}
            envelope = f.packb(fields)
        self.node.post(message.peer, f.ERROR, envelope, body, rank=message.rank)

    def too_late(self, message: Message, how: str) -> None:
        """Answer a call that has been cancelled, or whose deadline has passed.

        In the latter case its caller looks at what each rank does, which an answer would disturb, and then cancels it:
        the answer waits for that.
        """
        if message.cancelled is None:
            message.task = _Late(how)
        if message.cancelled is not None:
            self.answer_cancelled(message, how)

    def answer_cancelled(self, message: Message, how: str) -> None:
        """Say what became of a call that nobody waits for: `how` begins with "it" or "its"."""
        if message.cancelled == THE_END:
            self.refuse(message)
        elif message.cancelled == PAST_DEADLINE:
            how = f"{PAST_DEADLINE}: {how}" if how else f"{PAST_DEADLINE} before it was started"
            self.answer_error(message, CallTimeout(how), cancelled=how, deadline=True)
        else:
            how = how or "it was never started"
            text = f"{self.name}.{message.method} was cancelled: {how}"
            self.answer_error(message, SupervisionError(text), cancelled=how)


class _Late:
    """Stands for a call that has ended past its deadline."""

    __slots__ = ("how",)

    def __init__(self, how: str) -> None:
        self.how = how

    def cancel(self, message: Message) -> None:
        message.cell.answer_cancelled(message, self.how)


def cancel_soon(task: asyncio.Task[Any]) -> None:
    """Cancel a task of any thread's loop."""
    try:
        task.get_loop().call_soon_threadsafe(task.cancel)
    except RuntimeError:  # closed: the actor has ended
        return
