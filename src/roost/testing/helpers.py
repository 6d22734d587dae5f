"""What makes tests short: one actor on its own, many interleavings, assertions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..actors.actor import Actor
from ..mesh.shape import Extent, Point
from .errors import Explored
from .simulation import Simulation, current_simulation, simulate
from .watch import DIED

A = TypeVar("A", bound=Actor)


def local(
    Class: type[A], *args: Any, rank: int = 0, extent: Mapping[str, int] | None = None, name: str = "", **kwargs: Any
) -> A:
    """One actor in the simulation that runs, as rank `rank` of a mesh of `extent`: a mesh of one, to call at once.

    `current_rank()`, `context().actor_instance.rank`, RANK and WORLD_SIZE are those it would have in the whole mesh,
    whose other ranks are processes without an actor.

    >>> from roost import Actor, current_rank, endpoint, testing
    >>> class Shard(Actor):
    ...     @endpoint
    ...     def mine(self, rows): return rows[current_rank()["gpus"]]
    >>> with testing.simulate():
    ...     shard = testing.local(Shard, rank=1, extent={"gpus": 4})
    ...     shard.mine.call_one([10, 11, 12, 13]).get()
    11
    """
    sim = current_simulation()
    shape = Extent(extent or {})
    if not 0 <= rank < shape.nelements:
        raise IndexError(f"rank {rank} of a mesh of {shape.nelements}")
    procs = sim.this_host().spawn_procs(dict(shape))
    where = dict(Point(rank, shape))
    one = procs.slice(**where) if where else procs
    sim.placed[one._members()[0].proc_id] = [rank, list(shape.labels), list(shape.sizes)]
    return one.spawn(name or Class.__name__.lower(), Class, *args, **kwargs)


def assert_no_failures(sim: Simulation) -> None:
    """Raise AssertionError when an endpoint raised, a process died, or a failure was left that nobody handled."""
    wrong = [str(call) for call in sim.calls if call.outcome == DIED or call.outcome.startswith("raised")]
    wrong += [
        process.report.sentence()
        for process in sim.network.processes.values()
        if process.report is not None and (process.report.signal or process.report.code)
    ]
    wrong += [f"nobody handled: {fault.report()}" for fault in sim.faults]
    if wrong:
        raise AssertionError("\n".join(["the simulation had failures:", *wrong]))


def explore(test: Callable[[Simulation], Any], seeds: int | Iterable[int] = 100, **options: Any) -> None:
    """Run `test(sim)` in a fresh simulation for each seed: each draws another interleaving of independent senders.

    `seeds` is a number of them, from 0, or the very seeds. `test` may be `async def`. Further options are those of
    `simulate`. Raises Explored, an AssertionError, at the first seed that fails; its `seed` repeats the run and its
    cause is the failure.

    >>> from roost import testing
    >>> testing.explore(lambda sim: sim.clock.advance(1), seeds=3)
    """
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        try:
            with simulate(seed=seed, **options) as sim:
                answer = test(sim)
                if inspect.iscoroutine(answer):
                    sim.run(answer)
        except Exception as error:
            name = getattr(test, "__qualname__", repr(test))
            log = "\n".join(f"    {call}" for call in sim.calls[-20:])
            raise Explored(
                f"{name} fails with seed {seed}: {type(error).__name__}: {error}\n"
                f"  repeat it by testing.explore({getattr(test, '__name__', 'test')}, seeds=[{seed}]); "
                f"its last calls were\n{log}",
                seed,
            ) from error
