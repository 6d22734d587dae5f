"""Mailbox: how many messages of an actor may wait, and what happens to one more."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from .peer import Peer

POLICIES: Final = ("block", "drop_oldest", "fail")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A bound for what waits at each actor of a class: `class A(Actor, mailbox=Mailbox(limit=100, policy="fail"))`.

    Attributes:
        limit: messages that may wait for the actor's home thread; those that run and those of lanes do not count.
        policy: what happens to one more.

    "fail"
        A call is answered at once with Busy; a broadcast is dropped and counted as refused.
    "drop_oldest"
        The oldest message that waits makes room: if it is a call, it is answered with Busy; counted as dropped.
    "block"
        Its sender keeps it. The bound then holds for each sending process: at most `limit` of its messages wait here,
        further ones wait in that process, in order, and leave as the actor takes messages; past a bound of their own
        they fail with Busy there. `call` does not block. Answers, cancellations and supervision never wait.

    >>> Mailbox(limit=2, policy="ignore")
    Traceback (most recent call last):
        ...
    ValueError: policy='ignore': there are block, drop_oldest, fail
    """

    limit: int
    policy: Literal["block", "drop_oldest", "fail"] = "block"

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit={self.limit}: a mailbox must hold at least one message")
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: there are {', '.join(POLICIES)}")


def mailbox_of(cls: type) -> Mailbox | None:
    """The bound that a class of actors has chosen."""
    found: Mailbox | None = getattr(cls, "_roost_mailbox", None)
    return found


def narrow(peer: Peer, actor: int, cls: type) -> None:
    """At a sender, before its first message: send an actor no more than its class lets wait."""
    chosen = mailbox_of(cls)
    if chosen is not None and chosen.policy == "block":
        peer.narrow_credit(actor, chosen.limit)


class BoundedQueue:
    """The queue of an actor with a bound: as a SimpleQueue, but the oldest message can be taken out of it."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._filled = threading.Condition(threading.Lock())

    def put(self, item: Any) -> None:
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def get(self) -> Any:
        with self._filled:
            while not self._items:
                self._filled.wait()
            return self._items.popleft()

    def get_nowait(self) -> Any:
        with self._filled:
            if not self._items:
                raise queue.Empty
            return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        """What waits now."""
        with self._filled:
            return iter(list(self._items))

    def remove(self, item: Any) -> None:
        """Take one out; ValueError when it does not wait any more."""
        with self._filled:
            self._items.remove(item)
