"""Lanes: the threads of a simulation, of which one runs at a time.

Actors keep their home threads and the I/O thread its loop, so everything that is Roost's own runs as it does in
production; but a thread that waits hands a baton to the next one, which the scheduler picks. What would take time
takes virtual time: when no lane can go on, the clock jumps to the next moment somebody waits for, and where there is
none, that is a deadlock. With a seed the next lane is drawn, else the one that has been ready longest goes on.

A hand-over is a lock released and a lock taken, about 10 us.
"""

from __future__ import annotations

import heapq
import itertools
import random
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import Deadlock

if TYPE_CHECKING:
    from .world import Process

READY, RUNNING, BLOCKED, GONE, DONE = "ready", "running", "blocked", "gone", "done"
LOOK = 0.001  # virtual seconds that a look at `future.done()` or `context().cancelled` takes
UNWIND = 2.0  # real seconds a lane may take to unwind at the end


class Unwound(BaseException):
    """Raised in lanes that still wait when the simulation ends; nothing should catch it."""


class Lane:
    """One thread of the simulation."""

    def __init__(self, name: str, process: Process | None) -> None:
        self.name = name
        self.process = process
        self.baton = allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self.state = READY
        self.over: Callable[[], bool] = lambda: False
        self.answer = False
        self.until: float | None = None
        self.polled = False
        self.last = False
        self.turn = 0
        self.about: object = None
        self.error: BaseException | None = None
        self.before_block: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Lane {self.name}: {self.state}>"


class Scheduler:
    """Says which lane runs, and what time it is."""

    def __init__(self, seed: int | None, *, autojump: bool, patience: float, max_steps: int) -> None:
        self.now = 0.0
        self.choice = random.Random(seed) if seed is not None else None
        self.autojump = autojump
        self.allowed = 0.0  # how far the clock may go without autojump
        self.patience = patience
        self.max_steps = max_steps
        self.client = Lane("the test", None)
        self.client.state, self.client.ident = RUNNING, get_ident()
        self.current = self.client
        self.lanes: dict[Lane, None] = {self.client: None}
        self.ready: deque[Lane] = deque()
        self.blocked: dict[Lane, None] = {}
        self.polled: dict[Lane, None] = {}  # those of them that nobody wakes
        self.explain: Callable[[], str] = lambda: ""
        self.closing = False
        self.steps = self.switches = self.jumps = 0
        self._client_since = 0.0
        self._timers: list[tuple[float, int, Lane, int]] = []
        self._number = itertools.count().__next__

    def __repr__(self) -> str:
        return f"<Scheduler at {self.now:g} s: {len(self.ready)} ready, {len(self.blocked)} waiting>"

    def here(self) -> bool:
        """Whether the calling thread is the lane that runs."""
        return get_ident() == self.current.ident

    # what lanes do

    def add(self, lane: Lane) -> None:
        """A new lane, ready to run; its thread begins with `begin`."""
        self.lanes[lane] = None
        self.ready.append(lane)

    def begin(self, lane: Lane) -> None:
        """First thing on a lane's own thread."""
        lane.ident = get_ident()
        lane.baton.acquire()
        self._go_on(lane)

    def end(self, lane: Lane) -> None:
        """Last thing on a lane's own thread."""
        lane.state = DONE
        self.lanes.pop(lane, None)
        chosen = self.client if self.closing else self._choose()
        chosen.state, self.current = RUNNING, chosen
        chosen.baton.release()

    def wait(
        self,
        over: Callable[[], bool],
        until: float | None = None,
        *,
        about: object = None,
        polled: bool = True,
        last: bool = False,
    ) -> bool:
        """Let others run until `over()`, or until the clock says `until` (False).

        `polled`: nobody will call `wake`, so `over` is asked whenever another lane stops. `last` (of the test): when
        nothing else can run now, go on.
        """
        lane = self.current
        while True:
            self._go_on(lane)
            if over():
                return True
            if until is not None and self.now >= until:
                return False
            lane.over, lane.until, lane.about, lane.polled, lane.last = over, until, about, polled, last
            lane.answer = False
            self._block(lane)
            if lane.answer:
                self._go_on(lane)
                return True

    def give_way(self) -> None:
        """Let others that are ready run first."""
        lane = self.current
        self._go_on(lane)
        if self.ready or self.blocked:
            lane.state, lane.turn = READY, self._number()
            self.ready.append(lane)
            self._switch(lane)
            self._go_on(lane)

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        self.wait(lambda: False, self.now + max(seconds, 0), about=f"{seconds:g} s to pass", polled=False)

    def look(self) -> None:
        """A look whether something has happened: it takes a moment, so that loops of them end."""
        if self.autojump:
            self.sleep(LOOK)
        else:
            self.give_way()

    def wake(self, lane: Lane) -> None:
        """What the lane waits for may have come."""
        if lane.state == BLOCKED:
            self._ready(lane)

    def drop(self, lane: Lane) -> None:
        """The lane's process is gone: it never runs again."""
        self.blocked.pop(lane, None)
        self.polled.pop(lane, None)
        if lane in self.ready:
            self.ready.remove(lane)
        if lane.state != DONE:
            lane.state = GONE

    def vanish(self) -> None:
        """The running lane's process is gone: others run, this one never again."""
        lane = self.current
        lane.state = GONE
        self._switch(lane)
        self._go_on(lane)

    # who is next

    def _go_on(self, lane: Lane) -> None:
        if lane.error is not None:
            error, lane.error = lane.error, None
            raise error
        if self.closing and lane is not self.client:
            raise Unwound

    def _block(self, lane: Lane) -> None:
        while lane.before_block:
            lane.before_block.pop()()
        lane.state, lane.turn = BLOCKED, self._number()
        self.blocked[lane] = None
        if lane.polled:
            self.polled[lane] = None
        if lane.until is not None:
            heapq.heappush(self._timers, (lane.until, lane.turn, lane, lane.turn))
        if lane is self.client:
            self._client_since, self.steps = self.now, 0
        self._switch(lane)

    def _ready(self, lane: Lane, answer: bool = False) -> None:
        del self.blocked[lane]
        self.polled.pop(lane, None)
        lane.state, lane.turn, lane.answer = READY, self._number(), answer
        self.ready.append(lane)

    def _switch(self, lane: Lane) -> None:
        chosen = self._choose()
        chosen.state, self.current = RUNNING, chosen
        if chosen is not lane:
            self.switches += 1
            chosen.baton.release()
            lane.baton.acquire()

    def _choose(self) -> Lane:
        self.steps += 1
        while True:
            self._poll(self.polled)
            if self.steps > self.max_steps:
                self._complain(f"{self.steps} steps without an end: something runs in a circle")
            if not self.ready:
                self._poll(self.blocked)
            if self.ready:
                return self._draw()
            waiting = self.client if self.client.state == BLOCKED and self.client.last else None
            if waiting is not None:
                self._ready(waiting, answer=True)
            else:
                self._jump()

    def _draw(self) -> Lane:
        if self.choice is None or len(self.ready) == 1:
            return self.ready.popleft()
        lane = self.ready[self.choice.randrange(len(self.ready))]
        self.ready.remove(lane)
        return lane

    def _poll(self, lanes: dict[Lane, None]) -> None:
        for lane in list(lanes):
            if lane.over():
                self._ready(lane, answer=True)

    def _jump(self) -> None:
        """Nothing can run now: go to the next moment that somebody waits for."""
        timers = self._timers
        while timers and not self._live(timers[0]):
            heapq.heappop(timers)
        if not timers:
            self._complain("nothing can run, and no timer is set")
            return
        until = timers[0][0]
        if not self.autojump and until > self.allowed:
            self._complain("the clock stands still (autojump=False): call sim.clock.advance(seconds) from another task")
            return
        client = self.client
        if client.state == BLOCKED and client.until is None and until - self._client_since > self.patience:
            self._complain(f"the test has waited for {self.patience:g} virtual seconds, in which timers kept going off")
            return
        self.now = max(self.now, until)
        self.jumps += 1
        while timers and timers[0][0] <= self.now:
            entry = heapq.heappop(timers)
            if self._live(entry):
                self._ready(entry[2])

    @staticmethod
    def _live(entry: tuple[float, int, Lane, int]) -> bool:
        lane = entry[2]
        return lane.state == BLOCKED and lane.turn == entry[3]

    def _complain(self, why: str) -> None:
        """Raise a Deadlock in the test."""
        self.steps = 0
        client = self.client
        client.error = Deadlock(f"{why} (at {self.now:g} s)\n{self.explain()}")
        if client.state == BLOCKED:
            self._ready(client)

    def crash(self, error: BaseException) -> None:
        """Something of the simulation itself went wrong: the test hears of it."""
        self.client.error = error
        self.wake(self.client)

    # the end

    def close(self) -> list[Lane]:
        """Unwind every lane; in the test's thread. Returns those that would not."""
        self.closing = True
        client, stuck = self.client, []
        if self.current is not client and not client.baton.acquire(timeout=UNWIND):
            return list(self.lanes)
        client.error = None
        for lane in [*reversed(self.lanes)]:
            if lane is client or lane.state == DONE:
                continue
            client.state, lane.state, self.current = BLOCKED, RUNNING, lane
            lane.baton.release()
            if not client.baton.acquire(timeout=UNWIND):
                stuck.append(lane)
            self.current, client.state = client, RUNNING
        return stuck


def describe(what: Any) -> str:
    """What a lane waits for, in words."""
    about = getattr(what, "_about", None)
    text = about() if callable(about) else ""
    if text:
        return str(text)
    return str(what) if isinstance(what, str) else type(what).__name__
