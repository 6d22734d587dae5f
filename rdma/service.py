"""Messages between the data planes of two processes, and the thread that sends them.

The owner of a buffer hears "ack", "release" and "pin" (see `registry`). They are sent from one thread,
because a handle may be collected while its process's runtime holds any lock.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import cast

from ..actors.wire.receivers import RECEIVERS, want
from .home import home_or_none
from .registry import FORWARDED, registry

_log = logging.getLogger(__name__)

want()  # messages are pickled with their receivers known from now on


@contextmanager
def sending_to(proc_ids: Iterable[int]) -> Iterator[None]:
    """Say which processes will unpickle the handles pickled inside, each at least once.

    A message to them lifts the pin when all of them have unpickled it and given their handles up, or died. A
    handle pickled outside stays pinned until `drop()` or its owner's end, since nobody knows how many copies
    there are.
    """
    token = RECEIVERS.set(tuple(proc_ids))
    try:
        yield
    finally:
        RECEIVERS.reset(token)


def receivers() -> tuple[int, ...] | None:
    return RECEIVERS.get()


def receive(sender: int, kind: str, body: tuple[object, ...]) -> None:
    """A message that `sender` gave to its `Home.tell`; called by the runtime, on any thread, in any order."""
    key = cast(bytes, body[0])
    if kind == "ack":
        _, token, number = cast(tuple[bytes, int, int], body)
        registry().acknowledged(key, token, sender, number)
    elif kind == "release":
        registry().released(key, sender, cast(int, body[1]))
    elif kind == "pin":
        _, token, who = cast(tuple[bytes, int, tuple[int, ...] | None], body)
        export = registry().find(key)
        if export is not None:
            registry().pin(export, token, who)
    else:
        raise ValueError(f"process {sender:#x} sent {kind!r}: the data plane knows ack, release and pin")


class Holdings:
    """The remote handles of this process: tells their owners when the first comes and the last goes.

    `gone` is safe inside any finaliser: it only puts on a queue, whose thread counts and sends.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[str, int, bytes, int, tuple[int, ...] | None] | None] = SimpleQueue()
        self._counts: dict[bytes, int] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def came(self, owner: int, key: bytes, token: int) -> None:
        self._put("ack", owner, key, token)

    def passed_on(self, owner: int, key: bytes, who: tuple[int, ...] | None) -> int:
        """The token of a handle that this process, not its owner, pickles."""
        token = secrets.randbits(62) << 1 | FORWARDED
        self._put("pin", owner, key, token, who)
        return token

    def gone(self, owner: int, key: bytes) -> None:
        self._queue.put(("release", owner, key, 0, None))

    def _put(self, kind: str, owner: int, key: bytes, token: int, who: tuple[int, ...] | None = None) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="roost-rdma-holdings", daemon=True)
                self._thread.start()
        self._queue.put((kind, owner, key, token, who))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            kind, owner, key, token, who = item
            body: tuple[object, ...]
            if kind == "pin":
                body = (key, token, who)
            elif kind == "ack":
                self._counts[key] = self._counts.get(key, 0) + 1
                body = (key, token, next(self._numbers))
            else:
                self._counts[key] -= 1
                if self._counts[key]:
                    continue
                del self._counts[key]
                body = (key, next(self._numbers))
            here = home_or_none()
            if here is not None:
                try:
                    here.tell(owner, kind, body)
                except Exception:  # noqa: BLE001 - one lost message must not end the thread
                    _log.exception("could not tell process %#x of its buffers (%s)", owner, kind)

    def stop(self, timeout: float) -> None:
        """Send what is queued and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)


_holdings = Holdings()


def holdings() -> Holdings:
    return _holdings


def _after_fork() -> None:
    global _holdings
    _holdings = Holdings()  # the parent's handles are the parent's to release


os.register_at_fork(after_in_child=_after_fork)
