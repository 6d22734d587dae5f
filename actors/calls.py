"""Calls: what waits for answers.

`OneCall` waits for one rank, `MeshCall` for all of a mesh, `_Call` is what all have in common. Streams are in
`streams.py`, what sends is in `sending.py`. A call registers under a number in `Node.pending`, where answers, deaths,
deadlines and cancellations find it.
"""

from __future__ import annotations

import itertools
import logging
import time
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import Any, cast

from .errors import (
    ActorError,
    CallTimeout,
    MeshFailure,
    RoostError,
)
from .future import _CANCELLED, _PENDING, _RAW, Future, deadline
from .node import Node
from .peer import Peer
from .travel import from_portable, from_record
from .wire import frame as f
from .wire import pickling

logger = logging.getLogger("roost.calls")

WANTS_ANSWER = 1  # flags of a CALL
WANTS_ITEMS = 2  # the caller takes the items of a streaming endpoint one by one, as ITEM frames
NO_VALUE = 4  # the answer's value is not wanted: None is sent in its place
MANY = 8  # the body is a list of (args, kwargs): one call after the other, one answer, a list of (ok, value or error)
FAIL_WINDOW = 0.05  # seconds in which further failures of a mesh call join the first
STACKS_WAIT = 1.0  # seconds that the stacks of ranks which have not answered may take


def decode_answer(kind: int, rank: int, fields: list[Any], data: Any, buffers: list[Any]) -> Any:
    """The value of a REPLY; raises what an ERROR tells. In the thread that asks."""
    if kind == f.REPLY:
        return pickling.unpack(data, buffers)
    record = fields[5]
    if record.get("deadline"):
        raise CallTimeout(f"{record['actor']}.{record['endpoint']} at rank {rank}: {record['text']}")
    original = None
    if len(data):
        try:
            original, cause = (from_portable(part) for part in cast(tuple[Any, Any], pickling.unpack(data, buffers)))
            if original is not None and cause is not None:
                original.__cause__ = cause
        except Exception as error:  # noqa: BLE001 - a user's exception may fail to unpickle in any way
            record = {**record, "text": f"{record['text']} (it did not unpickle here: {type(error).__name__}: {error})"}
    if isinstance(original, MeshFailure):
        raise original
    raise from_record(record, rank, original)


_next_call = itertools.count(1).__next__


def _place(peer: Peer) -> str:
    where = peer.where
    return f"{peer.name} on {where.host}" if where is not None else peer.name


class Led(Future[Any]):
    """A future whose waiter reads the sockets itself, without another thread in between, where it may."""

    __slots__ = ("node",)

    node: Node

    def _settled(self) -> None:
        readers = self.node.io.readers
        if readers.leader is self:
            readers.wake(self)

    def _wait(self, timeout: float | None) -> bool:
        self._flush()
        until = deadline(timeout)
        io = self.node.io
        try:
            if not io.inside() and io.readers.wait(self, self.done, timeout):
                return True
        except BaseException:  # Ctrl-C: nobody waits for this call any more
            self.cancel("the wait for it was interrupted")
            raise
        return super()._wait(None if until is None else until - time.monotonic())


class _Call(Led):
    """Common to all calls: where they are registered, how they are cancelled, and what happens at their deadline."""

    __slots__ = ("about", "call_id", "peers")

    def __init__(self, node: Node, about: str, peers: Sequence[Peer]) -> None:
        super().__init__()
        self.node = node
        self.about = about
        self.peers = peers
        self.call_id = _next_call()
        node.pending[self.call_id] = self

    def _about(self) -> str:
        return self.about

    def _flush(self) -> None:
        for peer in self.peers:
            link = peer.link
            if link is not None and link.deferred:
                link.flush()

    # deadlines

    def expire(self, seconds: float, inherited: bool) -> None:
        """The call's deadline has passed: dump the stacks of those who have not answered, then cancel. I/O thread."""
        if self.done():
            return
        stacks = None if inherited else self._stacks()
        if stacks is None:
            self._time_out(self._timeout_text(seconds), {})
            return

        def dumped() -> None:
            self._time_out(self._timeout_text(seconds), stacks._result() if not stacks.cancelled() else {})

        if not stacks._when_done(dumped):
            dumped()

    def _timed_out(self, timeout: float) -> None:
        """A `get(timeout)` has waited in vain; in its thread."""
        text = self._timeout_text(timeout)
        stacks = self._stacks()
        found: dict[int, str] = {}
        if stacks is not None and stacks._wait(STACKS_WAIT * 2):
            found = stacks._result()
        self._time_out(text, found)

    def _timeout_text(self, seconds: float) -> str:
        return f"{self.about or 'the call'} gave no answer within {seconds:g} s and was cancelled"

    def _silent(self) -> dict[int, Peer]:
        """By rank: who has not answered."""
        return dict(enumerate(self.peers))

    def _stacks(self) -> Future[dict[int, str]] | None:
        """What those who have not answered are doing, by rank; None where it cannot be asked for."""
        if self.node.stacks_of is None or self.node.closed:
            return None
        silent = {rank: peer.where for rank, peer in self._silent().items() if peer.where is not None}
        if not silent:
            return None
        ranks = list(silent)
        asked = self.node.stacks_of([where for where in silent.values() if where is not None], STACKS_WAIT)
        return _ByRank(asked, ranks)

    def _time_out(self, text: str, stacks: dict[int, str]) -> None:
        silent = self._silent()
        if not silent and (self.node.io.inside() or Led._wait(self, STACKS_WAIT)):
            return  # the last answer has come meanwhile, and is being told
        error = CallTimeout(text)
        error.stacks = stacks
        error.unanswered = tuple(silent)
        error.places = {rank: _place(peer) for rank, peer in silent.items()}
        if self._settle(_CANCELLED, error):
            self._cancel_remote("its deadline has passed")

    def item(self, peer: Peer, rank: int, fields: list[Any], body: Any) -> None:
        """An item of a streaming endpoint that this call did not ask for."""
        self.node.open_body(fields[0], body)

    def _unregister(self) -> None:
        self.node.pending.pop(self.call_id, None)

    def _unanswered(self) -> Sequence[Peer]:
        return list(self._silent().values())

    def _cancel_remote(self, reason: str) -> None:
        envelope = f.packb([self.call_id, reason])
        for peer in self._unanswered():
            if peer.proc_id == self.node.proc_id:  # an actor that called itself takes the next message at once
                self.node.cancel_here(peer, self.call_id, reason)
            if peer.dead is None:
                self.node._post_quietly(peer, f.CANCEL, envelope)
                if peer.link is not None:
                    peer.link.flush()

    def _overtaken(self, kind: int, fields: list[Any]) -> bool:
        """Whether the actor tells that this call's deadline has passed before this end has found so itself: it will in
        a moment, and tell more."""
        return kind == f.ERROR and isinstance(fields[5], dict) and bool(fields[5].get("deadline")) and not self.done()

    def _note_cancelled(self, rank: int, fields: list[Any]) -> None:
        """The actor's word on a call that was cancelled here."""
        record = fields[5]
        if isinstance(record, dict) and record.get("cancelled"):
            self._note = f"{record['cancelled']}"

    def _fail(self, error: BaseException) -> None:
        self._hold(getattr(error, "_roost_failure", None))
        self.set_exception(error)

    def _hold(self, failure: Any) -> None:
        hold(self, failure)

    def _gone(self, peer: Peer, fields: list[Any]) -> Any:
        """The failure of which an answer tells that says that the actor is gone."""
        gone = isinstance(fields[5], dict) and fields[5].get("gone")
        return self.node.failure_of(fields[2], peer.proc_id) if gone else None

    def _hold_gone(self, peer: Peer, fields: list[Any]) -> None:
        self._hold(self._gone(peer, fields))


def hold(future: Future[Any], failure: Any) -> None:
    """This future will raise a failure: whoever asks for its value has then heard of it."""
    if failure is not None and not future.done():
        future._failure = failure if future._failure is None else _Both(future._failure, failure)
        failure.hold()


class _ByRank(Future[dict[int, str]]):
    """Stacks that were asked for by index, by rank."""

    __slots__ = ("_asked", "_ranks")

    def __init__(self, asked: Future[dict[int, str]], ranks: Sequence[int]) -> None:
        super().__init__()
        self._asked, self._ranks = asked, ranks

        def done() -> None:
            self.set_raw(None)

        if not asked._when_done(done):
            done()

    def _flush(self) -> None:
        self._asked._flush()

    def _decode(self, raw: Any) -> dict[int, str]:
        try:
            found = self._asked._result()
        except RoostError as error:
            return dict.fromkeys(self._ranks, f"(no stacks: {error})")
        return {self._ranks[index]: text for index, text in found.items()}


class _Both:
    """Two failures that one future will raise together."""

    __slots__ = ("_failures",)

    def __init__(self, *failures: Any) -> None:
        self._failures = failures

    def delivered(self) -> None:
        for failure in self._failures:
            failure.delivered()

    def dropped(self) -> None:
        for failure in self._failures:
            failure.dropped()


class OneCall(_Call):
    """A call to one rank."""

    __slots__ = ("actor", "nbytes", "parked", "rank", "seq")

    def __init__(self, node: Node, about: str, peer: Peer, rank: int) -> None:
        # As the bases do, in one function: three nested constructors cost 0.5 us a call.
        self._state = _PENDING
        self._value = None
        self._waiters = self._callbacks = self._failure = None
        self._lock = allocate_lock()
        self._note = ""
        self.node = node
        self.about = about
        self.peers = (peer,)
        self.rank = rank
        self.actor = self.nbytes = self.seq = 0
        self.parked: Callable[[], object] | None = None  # what sends it once there is credit
        self.call_id = call_id = _next_call()
        node.pending[call_id] = self

    def _cancel_remote(self, reason: str) -> None:
        peer = self.peers[0]
        with peer.lock:
            if self.parked is not None and peer.credit_for(self.actor).withdraw(self.parked):
                self._unregister()
                self._note = "it was never sent"
                for send in peer.credit_for(self.actor).release():
                    send()  # type: ignore[operator]
                return
            if self.seq and self.node.bury_frame(peer, self.seq, self.actor, self.nbytes):
                self._unregister()
                self._note = "it was never sent"
                return
        super()._cancel_remote(reason)

    def answered(self, peer: Peer, kind: int, rank: int, fields: list[Any], body: Any) -> None:
        if kind == f.ERROR and self._overtaken(kind, fields):
            return
        self.node.pending.pop(self.call_id, None)
        if self._state == _CANCELLED:
            if kind == f.ERROR:
                self._note_cancelled(rank, fields)
            return
        if kind == f.ERROR:
            self._hold_gone(peer, fields)
        if fields[0] is None:
            self._settle(_RAW, (kind, rank, fields, body, ()))
        else:
            self._settle(_RAW, (kind, rank, fields, *self.node.open_body(fields[0], body)))

    def lost(self, peer: Peer, error: Exception) -> None:
        if peer is self.peers[0]:
            self._unregister()
            self._fail(about_call(error, self.about, self.rank))

    def _decode(self, raw: Any) -> Any:
        return decode_answer(*raw)

    def _unseen(self) -> None:
        warn_unseen(self.about, self._value)


def warn_unseen(about: str, raw: Any) -> None:
    """Somebody has called, and never asked for the answer, which is a failure: `get()` was forgotten, most likely."""
    kind, rank, fields, *_ = raw
    if kind == f.ERROR and not fields[5].get("gone"):
        kind_name = fields[5]["type"].removeprefix("builtins.")
        text = fields[5]["text"]
        logger.warning("%s at rank %d raised %s: %s; nobody asked for its answer", about, rank, kind_name, text)


def about_call(error: Exception, about: str, rank: int) -> Exception:
    """The error of one call: the failure's own, said of this call, so that each has a traceback of its own."""
    if not isinstance(error, MeshFailure):
        return error
    copy = type(error)(
        f"{about}: {error.args[0]}" if about else error.args[0],
        mesh_name=error.mesh_name,
        crashed_ranks=error.crashed_ranks or (rank,),
        cause=error.cause,
        report=error.exit_report,
    )
    failure = getattr(error, "_roost_failure", None)
    if failure is not None:
        copy._roost_failure = failure  # type: ignore[attr-defined]
    return copy


class MeshCall(_Call):
    """A call to every rank; fails at the first failure plus a short window in which others join.

    The value is built by `gather` from the answers in rank order, in the thread that asks.
    """

    __slots__ = ("answers", "cancel_rest", "errors", "fail_fast", "failing", "gather", "late", "left")

    def __init__(
        self,
        node: Node,
        about: str,
        peers: Sequence[Peer],
        gather: Callable[[list[Any]], Any],
        *,
        fail_fast: bool = True,
        cancel_rest: bool = False,
    ) -> None:
        super().__init__(node, about, peers)
        self.cancel_rest = cancel_rest
        self.late: set[int] = set()
        self.gather = gather
        self.answers: list[Any] = [None] * len(peers)
        self.errors: dict[int, Exception | None] = {}
        self.left = len(peers)
        self.failing = False
        self.fail_fast = fail_fast

    def _silent(self) -> dict[int, Peer]:
        return {
            rank: peer for rank, peer in enumerate(self.peers) if self.answers[rank] is None and rank not in self.errors
        }

    def answered(self, peer: Peer, kind: int, rank: int, fields: list[Any], body: Any) -> None:
        if not 0 <= rank < len(self.answers) or self.answers[rank] is not None or self.peers[rank] is not peer:
            return
        if self._overtaken(kind, fields):
            return
        if (
            self._told()
        ):  # it has failed already: what comes later, such as the word of a cancelled rank, is no part of it
            self.node.open_body(fields[0], body)
            self._late(rank)
            return
        self.answers[rank] = (kind, rank, fields, *self.node.open_body(fields[0], body))
        self.left -= 1
        if kind == f.ERROR:
            if self.cancelled():
                self._note_cancelled(rank, fields)
            else:
                self._hold_gone(peer, fields)
                self.errors[rank] = None
        self._step()

    def lost(self, peer: Peer, error: Exception) -> None:
        for rank, member in enumerate(self.peers):
            if member is peer:
                self.rank_lost(rank, error)

    def rank_lost(self, rank: int, error: Exception) -> None:
        """A rank will never answer."""
        if self.answers[rank] is not None or rank in self.errors:
            return
        if self._told():
            self._late(rank)
            return
        self.errors[rank] = error
        self.left -= 1
        self._step()

    def _told(self) -> bool:
        return self.done() and not self.cancelled()

    def _late(self, rank: int) -> None:
        """A rank has answered, or is lost, after the call has failed."""
        self.late.add(rank)
        if len(self.late) == self.left:
            self._unregister()

    def _step(self) -> None:
        if self.left == 0:
            self._unregister()
            self._end()
        elif self.errors and self.fail_fast and not self.failing:
            self.failing = True
            self.node.io.call(self.node.io.loop.call_later, FAIL_WINDOW, self._end)

    def _end(self) -> None:
        if self.done():
            return
        if not self.errors:
            self.set_raw(None)
            return
        for error in self.errors.values():
            self._hold(getattr(error, "_roost_failure", None))
        if self.set_raw(None) and self.cancel_rest and self.left:
            self._cancel_remote("another rank of the same call has failed")

    def _decode(self, raw: Any) -> Any:
        if not self.errors:
            return self.gather([decode_answer(*answer) for answer in self.answers])
        raise self._joined()

    def _unseen(self) -> None:
        for rank in sorted(self.errors):
            if self.errors[rank] is None:
                warn_unseen(self.about, self.answers[rank])
                break

    def _joined(self) -> BaseException:
        failures: list[tuple[int, BaseException]] = []
        for rank in sorted(self.errors):
            known = self.errors[rank]
            if known is not None:
                failures.append((rank, about_call(known, f"{self.about} at rank {rank}", rank)))
                continue
            try:
                decode_answer(*self.answers[rank])
            except Exception as error:  # noqa: BLE001 - it is what the endpoint raised
                failures.append((rank, error))
        # An endpoint's own exception explains more than the death that followed from it, or that it followed from.
        failures.sort(key=lambda item: (not isinstance(item[1], MeshFailure), item[0]))
        _, first = failures[0]
        if isinstance(first, ActorError | MeshFailure):
            first.others = tuple(failures[1:])
            first.running = tuple(self._silent())
            first.rest_cancelled = self.cancel_rest
        return first
