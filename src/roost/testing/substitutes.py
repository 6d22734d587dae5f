"""The things that stand in for threads, queues, events, and for what each process has one of."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..actors.errors import RoostError
from .lanes import DONE, Lane, Scheduler

if TYPE_CHECKING:
    from .simulation import Simulation
    from .world import Process


class Shim:
    """A module of the library with some names replaced."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Current:
    """Stands in for the one-element containers of the current node and runtime: each process has its own."""

    def __init__(self, sim: Simulation, original: Any, pick: Callable[[Process], Any]) -> None:
        self._sim = sim
        self._original = original
        self._pick = pick

    def __bool__(self) -> bool:
        if self._sim.scheduler.here():
            self._sim.look_at_loop()
            return True
        if not self._original:
            raise RoostError(
                "this thread is not part of the simulation: start it by asyncio.to_thread, or by sim.thread(...)"
            )
        return True

    def __getitem__(self, index: int) -> Any:
        if self._sim.scheduler.here():
            return self._pick(self._sim.process())
        return self._original[index]

    def clear(self) -> None:
        """A process of a simulation keeps what it has."""
        if not self._sim.scheduler.here():
            self._original.clear()

    def append(self, value: Any) -> None:
        """A process of a simulation has its own."""
        if not self._sim.scheduler.here():
            self._original.append(value)


class Controllers(Current):
    """Stands in for the list with the program's controller: a simulated worker has none, the test has one."""

    def __bool__(self) -> bool:
        if self._sim.scheduler.here():
            return self._sim.process() is self._sim.controller
        return bool(self._original)


class PerProcess(MutableMapping[Any, Any]):
    """Stands in for a mapping of which each process has one."""

    def __init__(self, sim: Simulation, original: Any) -> None:
        self._sim = sim
        self._original = original
        self._own: dict[Process, OrderedDict[Any, Any]] = {}

    def _mapping(self) -> Any:
        if not self._sim.scheduler.here():
            return self._original
        return self._own.setdefault(self._sim.process(), OrderedDict())

    def __getitem__(self, key: Any) -> Any:
        return self._mapping()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mapping()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._mapping()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """As OrderedDict's."""
        item: tuple[Any, Any] = self._mapping().popitem(last=last)
        return item


class Environ(MutableMapping[str, str]):
    """os.environ, of which each simulated process has a copy of its own."""

    def __init__(self, sim: Simulation, original: Any) -> None:
        self._sim = sim
        self._original = original

    def _mapping(self) -> Any:
        if self._sim.scheduler.here():
            process = self._sim.process_or_none()
            if process is not None and process.environ is not None:
                return process.environ
        return self._original

    def __getitem__(self, name: str) -> str:
        value: str = self._mapping()[name]
        return value

    def __setitem__(self, name: str, value: str) -> None:
        self._mapping()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._mapping()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._mapping()))

    def __len__(self) -> int:
        return len(self._mapping())

    def __repr__(self) -> str:
        return repr(self._mapping())

    def copy(self) -> dict[str, str]:
        """As os.environ's own."""
        return dict(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class LaneQueue:
    """queue.SimpleQueue whose `get` hands the baton on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self.qsize = self._items.__len__
        self.put = self._items.append

    def empty(self) -> bool:
        """As SimpleQueue's."""
        return not self._items

    def put_nowait(self, item: Any) -> None:
        """As SimpleQueue's."""
        self._items.append(item)

    def get_nowait(self) -> Any:
        """As SimpleQueue's."""
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As SimpleQueue's, in virtual time."""
        until = None if timeout is None else self._scheduler.now + timeout
        if block and not self._items:
            self._scheduler.wait(lambda: bool(self._items), until, about="a queue")
        return self.get_nowait()


class LaneEvent(threading.Event):
    """threading.Event whose `wait` hands the baton on."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def wait(self, timeout: float | None = None) -> bool:
        if not self._scheduler.here():
            return super().wait(timeout)
        until = None if timeout is None else self._scheduler.now + timeout
        return self._scheduler.wait(self.is_set, until, about="an event")


class LaneThread(threading.Thread):
    """A thread that is a lane."""

    def __init__(self, sim: Simulation, process: Process | None, **options: Any) -> None:
        super().__init__(**{"daemon": True, **options})
        self._sim = sim
        self.lane = Lane(self.name, process)

    def start(self) -> None:
        """Be ready to run."""
        if self.lane.process is not None:
            self.lane.process.lanes.append(self.lane)
        self._sim.scheduler.add(self.lane)
        super().start()

    def run(self) -> None:
        """The life of the lane."""
        self._sim.run_lane(self.lane, super().run)

    def join(self, timeout: float | None = None) -> None:
        """Wait in virtual time."""
        scheduler = self._sim.scheduler
        if scheduler.here() and not scheduler.closing:
            until = None if timeout is None else scheduler.now + timeout
            scheduler.wait(lambda: self.lane.state == DONE, until, about=f"thread {self.name} to end")
        else:
            super().join(timeout)
