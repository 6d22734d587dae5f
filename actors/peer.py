"""What a process knows of another: its numbers, its route, its credit, and what it has been taught."""

from __future__ import annotations

import threading
from typing import Any

from .link.stream import Link
from .refs import ProcRef
from .wire.delivery import CreditReceiver, CreditSender, Inbox, Outbox
from .wire.pool import Segment

# Credit each actor grants each sending process, and the sender's own bound of what waits for it.
CREDIT_MESSAGES = 4096
CREDIT_BYTES = 256 << 20
BOUND_MESSAGES = 262_144
BOUND_BYTES = 4 << 30


class Kept:
    """A frame that is kept until the receiver has acknowledged it."""

    __slots__ = ("nbytes", "parts", "segment")

    def __init__(self, parts: list[Any], nbytes: int, segment: Segment | None = None) -> None:
        self.parts = parts
        self.nbytes = nbytes
        self.segment = segment


class Peer:
    """The other end of one end-to-end sequence each way. `lock` guards everything but the inbox."""

    __slots__ = (
        "acked", "asked", "credit", "dead", "granting", "heeded", "inbox", "known", "link", "lock", "name", "outbox",
        "owed", "owed_bytes", "proc_id", "routing", "segments", "silent_since", "watched", "where",
    )  # fmt: skip

    def __init__(self, proc_id: int, name: str) -> None:
        self.proc_id = proc_id
        self.name = name
        self.where: ProcRef | None = None
        self.outbox = Outbox(name)
        self.inbox = Inbox(name)
        self.link: Link | None = None
        self.lock = threading.RLock()
        self.known: set[bytes] = set()  # definitions this peer has been sent
        self.segments: set[int] = set()  # pool segments whose descriptor went over the present link
        self.credit: dict[int, CreditSender] = {}  # by actor there
        self.granting: dict[int, CreditReceiver] = {}  # by actor here
        self.dead: Exception | None = None
        self.routing = False
        self.watched = False  # its agent will tell of its end …
        self.asked = False  # … and who is nearer to it than this process
        self.heeded = 0  # how much here waits for it, other than calls
        self.silent_since = 0.0
        self.acked = 1
        self.owed = 0  # frames received since this side last acknowledged
        self.owed_bytes = 0

    def __repr__(self) -> str:
        route = "dead" if self.dead else "no route" if self.link is None else f"via {self.link.peer.name}"
        return f"<Peer {self.name}: {route}, {self.outbox.kept} kept, next {self.inbox.next_seq}>"

    def forget(self) -> None:
        """It is dead: nothing will be sent to it, or come from it, any more."""
        self.outbox.clear()
        self.credit, self.granting, self.known, self.segments = {}, {}, set(), set()

    def credit_for(self, actor: int) -> CreditSender:
        """The credit this process has with one actor of the peer."""
        found = self.credit.get(actor)
        if found is None:
            found = self.credit[actor] = CreditSender(CREDIT_MESSAGES, CREDIT_BYTES, BOUND_MESSAGES, BOUND_BYTES)
        return found

    def revived(self, actor: int) -> bool:
        """An actor here has been spawned anew: count afresh; whether the peer has to be told."""
        before = self.granting.get(actor)
        if before is not None:
            self.granting[actor] = CreditReceiver(CREDIT_MESSAGES, CREDIT_BYTES, before.life + 1)
        return before is not None

    def narrow_credit(self, actor: int, messages: int) -> None:
        """Before the first message to an actor of the peer: this many of them may be outstanding."""
        with self.lock:
            if actor not in self.credit:
                window = min(messages, CREDIT_MESSAGES)
                self.credit[actor] = CreditSender(window, CREDIT_BYTES, BOUND_MESSAGES, BOUND_BYTES)

    def narrow_granting(self, actor: int, messages: int) -> None:
        """The same at the receiving end: the peer waits for fewer, so it is told sooner."""
        self.granting_for(actor).narrow(messages)

    def granting_for(self, actor: int) -> CreditReceiver:
        """What one actor here has consumed of the peer's messages."""
        found = self.granting.get(actor)
        if found is None:
            found = self.granting[actor] = CreditReceiver(CREDIT_MESSAGES, CREDIT_BYTES)
        return found
