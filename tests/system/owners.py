"""Actors that own others and let them fail, sync, async and mixed; imported by workers, so it imports nothing heavy."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from roost.actors import Actor, MeshFailure, Port, endpoint

WAIT = 20.0


class Child(Actor):
    """What is owned."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def sleep(self, seconds: float, port: Port[int] | None = None) -> None:
        if port is not None:
            port.send(os.getpid())
        time.sleep(seconds)

    @endpoint
    def drip(self, port: Port[int]) -> Iterator[int]:
        port.send(os.getpid())
        time.sleep(60)
        yield 1

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def ask(self, mesh: Any, seconds: float, port: Port[int] | None = None) -> Any:
        """Wait for another actor."""
        return mesh.sleep.call(seconds, port).get(timeout=WAIT)


def settle(futures: list[Any]) -> None:
    """Wait until all are done, and look at none: neither `done()` nor a done callback counts as looking."""
    done = threading.Semaphore(0)
    for future in futures:
        future.add_done_callback(lambda _: done.release())
    for _ in futures:
        assert done.acquire(timeout=WAIT)
    assert all(future.done() for future in futures)


class _Family(Actor):
    """What the parents of all kinds do; `verdict` is what `__supervise__` says."""

    def __init__(self, verdict: str = "falsy") -> None:
        self.verdict = verdict
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.futures: list[Any] = []

    def judge(self, failure: MeshFailure) -> bool:
        self.asked.append((failure.mesh_name, failure.crashed_ranks))
        if self.verdict == "raises":
            raise LookupError("the hook fails")
        return self.verdict == "handled"

    def bear(self, count: int) -> tuple[Any, list[int]]:
        from roost.mesh import this_host

        self.mesh = this_host().spawn_procs({"gpus": count}).spawn("child", Child)
        self.mesh.initialized.get(timeout=WAIT)  # else it too would be a future that may tell of a death
        pids: list[int] = self.mesh.pid.call().get(timeout=WAIT).values()
        return self.mesh, pids

    def wait_for(self, count: int) -> None:
        self.futures = [self.mesh.slice(gpus=0).sleep.call_one(60) for _ in range(count)]

    def let_go(self) -> None:
        self.futures.clear()
        gc.collect()


class Parent(_Family):
    """Sync endpoints, sync hook."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        return self.judge(failure)

    @endpoint
    def spawn_children(self, count: int) -> tuple[Any, list[int]]:
        return self.bear(count)

    @endpoint
    def call(self, count: int = 1) -> None:
        self.wait_for(count)

    @endpoint
    def settled(self) -> None:
        settle(self.futures)

    @endpoint
    def drop(self) -> None:
        self.let_go()

    @endpoint
    def look(self) -> str:
        return type(self.futures[0].exception(timeout=WAIT)).__name__

    @endpoint
    def hooks(self) -> list[tuple[str, tuple[int, ...]]]:
        return self.asked


class AsyncParent(_Family):
    """The same, all async. What waits for a process in this thread would hold the loop, and does not."""

    async def __supervise__(self, failure: MeshFailure) -> bool:
        return self.judge(failure)

    @endpoint
    async def spawn_children(self, count: int) -> tuple[Any, list[int]]:
        from roost.mesh import this_host

        self.mesh = this_host().spawn_procs({"gpus": count}).spawn("child", Child)
        await self.mesh.initialized
        return self.mesh, (await self.mesh.pid.call()).values()

    @endpoint
    async def call(self, count: int = 1) -> None:
        self.wait_for(count)

    @endpoint
    async def settled(self) -> None:
        settle(self.futures)

    @endpoint
    async def drop(self) -> None:
        self.let_go()

    @endpoint
    async def look(self) -> str:
        try:
            await self.futures[0]
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return type(error).__name__
        return "nothing"

    @endpoint
    async def hooks(self) -> list[tuple[str, tuple[int, ...]]]:
        return self.asked


class MixedParent(Parent):
    """Sync endpoints and a sync hook beside an async endpoint, which is the one that looks."""

    @endpoint
    async def look(self) -> str:  # type: ignore[override]
        try:
            await self.futures[0]
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return type(error).__name__
        return "nothing"


PARENTS = [Parent, AsyncParent, MixedParent]


class Grandparent(Actor):
    """Owns a parent, which owns children; has no hook."""

    @endpoint
    def spawn_parent(self, kind: type) -> tuple[Any, list[int]]:
        from roost.mesh import this_host

        self.parents = this_host().spawn_procs({"gpus": 1}).spawn("parent", kind)
        return self.parents.spawn_children.call(1).get(timeout=WAIT).values()[0]


class Link(Actor):
    """One of a chain: passes a request on to the next, and the last one fails."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def go(self, rest: list[Any], how: str) -> Any:
        if rest:
            return rest[0].go.call_one(rest[1:], how).get(timeout=WAIT)
        return fail(how)


class AsyncLink(Actor):
    """The same, async."""

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def go(self, rest: list[Any], how: str) -> Any:
        if rest:
            return await rest[0].go.call_one(rest[1:], how)
        return fail(how)


def fail(how: str) -> None:
    """Raise, or die."""
    if how == "killed":
        os.kill(os.getpid(), 9)
        time.sleep(60)
    raise KeyError("deep down")
