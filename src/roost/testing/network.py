"""The network of a simulation: frames between processes in memory, in order, later, or not at all.

Nodes, sequences, acknowledgements, credit and re-sending are Roost's own; only links and the I/O thread are stood in
for. All nodes share one lane with one virtual loop for what their I/O threads would do.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ..actors.link.gate import DialError
from ..actors.link.handshake import Identity
from ..actors.peer import Peer
from ..actors.routing import Routing
from ..actors.wire import frame as f
from .lanes import Lane, Scheduler
from .loops import LaneLoop

if TYPE_CHECKING:
    from .world import Process


class LaneReaders:
    """Stands in for `Readers`: a thread that waits hands the baton on."""

    closed = False
    leader: object | None = None

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[int, Lane] = {}
        self.dispatching = threading.RLock()

    def wait(self, who: Any, over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `over()` or for `timeout` virtual seconds."""
        scheduler = self._scheduler
        until = None if timeout is None else scheduler.now + max(timeout, 0)
        lane = scheduler.current
        register = getattr(who, "_when_done", None)
        if register is not None:
            register(lambda: scheduler.wake(lane))
        self._waiting[id(who)] = lane
        try:
            return scheduler.wait(over, until, about=who, polled=False)
        finally:
            self._waiting.pop(id(who), None)

    def wake(self, who: object) -> None:
        """What `who` waits for may have come."""
        lane = self._waiting.get(id(who))
        if lane is not None:
            self._scheduler.wake(lane)

    def abandon(self) -> None:
        """Nothing to let go of."""

    def close(self) -> None:
        """Nothing to close."""


class LaneIo:
    """Stands in for `IoThread`: the I/O lane that all processes share."""

    thread: threading.Thread | None = None

    def __init__(self, scheduler: Scheduler, loop: LaneLoop, lane: Lane, process: Process) -> None:
        self.loop = loop
        self.readers = LaneReaders(scheduler)
        self.quiet = False  # while a node is made: its own links and ticks are not wanted
        self._scheduler = scheduler
        self._lane = lane
        self._process = process

    @property
    def ident(self) -> int:
        """The thread that dispatches frames."""
        return self._lane.ident

    def inside(self) -> bool:
        """Whether the caller is on the I/O lane."""
        return self._scheduler.current is self._lane

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` on the I/O lane, soon."""
        if not self.quiet and self._process.report is None and not self._scheduler.closing:
            self.loop.call_soon_threadsafe(function, *args, context=self._process.context.copy())

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Submitted:
        """Run a coroutine on the I/O lane."""
        submitted = Submitted(self._scheduler)
        self.call(lambda: submitted.follow(self.loop.create_task(coroutine)))
        return submitted

    def stop(self, timeout: float = 5.0) -> None:
        """The lane ends with the simulation."""


class Submitted:
    """What `LaneIo.submit` gives: the outcome of a coroutine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._task: asyncio.Task[Any] | None = None

    def follow(self, task: asyncio.Task[Any]) -> None:
        """The coroutine has begun."""
        self._task = task

    def done(self) -> bool:
        """Whether it has ended."""
        return self._task is not None and self._task.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it, in virtual time."""
        until = None if timeout is None else self._scheduler.now + timeout
        if not self._scheduler.wait(self.done, until, about="work of the I/O lane"):
            raise TimeoutError
        assert self._task is not None
        return self._task.result()


class SimLink:
    """What one process holds of its way to another."""

    same_host_socket = False
    deferred = queued_bytes = 0
    heard = float("inf")

    def __init__(self, network: Network, mine: Process, theirs: Process) -> None:
        self._network = network
        self._mine = mine
        self._theirs = theirs
        self._cut = False
        self.descriptors: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<SimLink {self._mine.name} to {self._theirs.name}{', closed' if self.closed else ''}>"

    @property
    def peer(self) -> Identity:
        """Who is at the other end."""
        return self._theirs.node.identity

    @property
    def closed(self) -> bool:
        """Cut, or its process has ended and all it had said has been read."""
        return self._cut or (self._theirs.report is not None and not self._network.underway(self._theirs, self._mine))

    def send(self, parts: Sequence[Any], nbytes: int, *, defer: bool = False) -> None:
        """Send a frame."""
        self._network.send(self._mine, b"".join(parts))

    def send_frame(self, frame: bytes, defer: bool) -> None:
        """The same for a frame in one buffer."""
        self._network.send(self._mine, frame)

    def flush(self) -> None:
        """Nothing is ever deferred."""

    def close(self, why: str = "") -> None:
        """Cut it: its node looks for another way."""
        if not self._cut:
            self._cut = True
            self._mine.context.copy().run(self._mine.node.routing.broken, self, why)  # type: ignore[arg-type]

    def abandon(self) -> None:
        """Let go of it without a word."""
        self._cut = True


class Network:
    """Who reaches whom, and what is on its way."""

    def __init__(self, scheduler: Scheduler, loop: LaneLoop, latency: float) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self.latency = latency
        self.processes: dict[int, Process] = {}
        self.cut_off: set[str] = set()  # hosts
        self.frames = self.dropped = 0
        self._channels: dict[tuple[int, int], deque[tuple[int, float, bytes]]] = {}
        self._order: list[tuple[float, int, tuple[int, int]]] = []
        self._sent = 0
        self._pumping = False

    def __repr__(self) -> str:
        return f"<Network of {len(self.processes)} processes, {sum(map(len, self._channels.values()))} frames underway>"

    def apart(self, a: Process, b: Process) -> bool:
        """Whether a partition lies between two processes."""
        return a.host.name != b.host.name and bool({a.host.name, b.host.name} & self.cut_off)

    def underway(self, a: Process, b: Process) -> bool:
        """Whether frames of `a` for `b` have not arrived yet."""
        return bool(self._channels.get((a.proc_id, b.proc_id)))

    def send(self, source: Process, frame: bytes) -> None:
        """Put a frame on its way."""
        destination = self.processes.get(f.HEADER.unpack_from(frame)[5])
        if (
            self._scheduler.closing
            or source.report is not None
            or destination is None
            or destination.report is not None
        ):
            self.dropped += 1
            return
        if self.apart(source, destination):
            self.dropped += 1
            return
        self._sent += 1
        at = self._scheduler.now + (self.latency if source.host is not destination.host else 0.0)
        key = (source.proc_id, destination.proc_id)
        self._channels.setdefault(key, deque()).append((self._sent, at, frame))
        if self._scheduler.choice is None:
            heapq.heappush(self._order, (at, self._sent, key))
            self._at(at, self._pump)
        elif not self._pumping:
            self._pumping = True
            self._at(at, self._pump_drawn)

    def _at(self, at: float, function: Callable[[], None]) -> None:
        if at <= self._scheduler.now:
            self._loop.call_soon_threadsafe(function)
        else:
            self._loop.call_soon_threadsafe(self._loop.call_at, at, function)

    def _heads(self) -> list[tuple[int, float, tuple[int, int]]]:
        return sorted((frames[0][0], frames[0][1], key) for key, frames in self._channels.items())

    def _pump(self) -> None:
        """Deliver the frame that arrives first."""
        self._deliver(heapq.heappop(self._order)[2])

    def _pump_drawn(self) -> None:
        """Deliver a frame of any sender, drawn; other lanes run in between."""
        assert self._scheduler.choice is not None
        heads = self._heads()
        here = [key for _, at, key in heads if at <= self._scheduler.now]
        if here:
            self._deliver(here[self._scheduler.choice.randrange(len(here))])
            heads = self._heads()
        if heads:
            self._at(min(at for _, at, _ in heads), self._pump_drawn)
        else:
            self._pumping = False

    def _deliver(self, key: tuple[int, int]) -> None:
        frames = self._channels[key]
        _, _, frame = frames.popleft()
        if not frames:
            del self._channels[key]
        source, destination = self.processes[key[0]], self.processes[key[1]]
        if destination.report is not None or self.apart(source, destination):
            self.dropped += 1
            return
        self.frames += 1
        link: Any = destination.node.routing.links.get(source.proc_id) or SimLink(self, destination, source)
        header = f.HEADER.unpack_from(frame)
        body_at = f.HEADER_SIZE + header[3]
        try:
            destination.context.copy().run(
                destination.node._on_frame, link, header, frame[f.HEADER_SIZE : body_at], frame[body_at:]
            )
        except Exception as error:  # noqa: BLE001 - the test hears of it
            self._scheduler.crash(error)

    def connect(self, a: Process, b: Process) -> None:
        """Links both ways, as a dial makes them."""
        for mine, theirs in ((a, b), (b, a)):
            known = mine.node.routing.links.get(theirs.proc_id)
            if known is None or known.closed:
                link: Any = SimLink(self, mine, theirs)
                mine.context.copy().run(mine.node.routing.joined, link)

    def cut(self, host: str) -> None:
        """Let nothing pass between a host and the others."""
        self.cut_off.add(host)
        for process in list(self.processes.values()):
            for proc_id, link in list(process.node.routing.links.items()):
                if self.apart(process, self.processes[proc_id]):
                    link.close("the network is partitioned")


class SimRouting(Routing):
    """Routing whose dials are looked up, and without the ticks that only real sockets need."""

    def __init__(self, process: Process, network: Network) -> None:
        self._process = process
        self._network = network
        super().__init__(process.node)

    def _tick(self) -> None:
        """Links in memory lose nothing that a tick would have to find."""

    async def _link_for(self, peer: Peer) -> Any:
        target = self._network.processes.get(peer.proc_id)
        if target is None or target.report is not None or not target.listens:
            raise DialError("nobody listens there")
        if self._network.apart(self._process, target):
            raise DialError(f"the network is partitioned at {', '.join(sorted(self._network.cut_off))}")
        self._network.connect(self._process, target)
        return self.links[peer.proc_id]
