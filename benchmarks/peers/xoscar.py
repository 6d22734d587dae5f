"""xoscar: actors in the sub-processes of a pool in this process.

It is asyncio only: a blocking call is `run_until_complete` on the one loop that the pool lives on, and a
call on a mesh is a gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

import xoscar
from xoscar.backends.allocate_strategy import ProcessIndex

from .base import NotOffered, fail_one, first_answer, leave, read_every_byte, stall


class Echo(xoscar.Actor):
    """The actor under test."""

    def echo(self, value: object) -> object:
        return value

    def first(self, with_torch: bool) -> tuple[int, bool]:
        return first_answer(with_torch)

    def touch(self, value: object) -> object:
        return read_every_byte(value)

    def stall(self, path: str) -> None:
        stall(path)

    def leave(self, path: str) -> None:
        leave(path)

    def fail_one(self, pid: int, seconds: float) -> None:
        fail_one(pid, seconds)


class XoscarPeer:
    """A mesh is (the pool, a reference a process)."""

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def spawn(self, n: int) -> tuple[Any, list[Any]]:
        return self.run(self._spawn(n))

    async def _spawn(self, n: int) -> tuple[Any, list[Any]]:
        pool = await xoscar.create_actor_pool("127.0.0.1", n_process=n)
        actors = [
            xoscar.create_actor(
                Echo, address=pool.external_address, uid=f"echo-{i}", allocate_strategy=ProcessIndex(i + 1)
            )
            for i in range(n)
        ]
        return pool, await asyncio.gather(*actors)

    def first_answers(self, mesh: tuple[Any, list[Any]], with_torch: bool) -> Sequence[tuple[int, bool]]:
        return self.run(self._gather([actor.first(with_torch) for actor in mesh[1]]))

    def one(self, mesh: tuple[Any, list[Any]]) -> Any:
        return mesh[1][0]

    def call(self, actor: Any, value: object) -> object:
        return self.run(actor.echo(value))

    def awaitable(self, actor: Any, value: object) -> Awaitable[object]:
        return actor.echo(value)

    def submit(self, actor: Any, value: object) -> Any:
        return actor.echo(value)

    def collect(self, pending: list[Any]) -> list[object]:
        return self.run(self._gather(pending))

    def call_all(self, mesh: tuple[Any, list[Any]], value: object) -> Sequence[object]:
        return self.run(self._gather([actor.echo(value) for actor in mesh[1]]))

    async def _gather(self, calls: list[Any]) -> list[object]:
        return list(await asyncio.gather(*calls))

    def touch(self, actor: Any, value: object) -> object:
        return self.run(actor.touch(value))

    def share(self, actor: Any, nbytes: int) -> Any:
        raise NotOffered("no one-sided read into the caller's memory")

    def read(self, handle: Any, into: object) -> None:
        raise NotOffered("no one-sided read into the caller's memory")

    def stall(self, actor: Any, path: str) -> Any:
        return actor.stall(path)

    def leave(self, actor: Any, path: str) -> Any:
        return actor.leave(path)

    def fail_one(self, mesh: tuple[Any, list[Any]], pid: int, seconds: float) -> object:
        return self.run(self._gather([actor.fail_one(pid, seconds) for actor in mesh[1]]))

    def run(self, coroutine: Coroutine[object, object, Any] | Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def stop(self, mesh: tuple[Any, list[Any]]) -> None:
        self.run(mesh[0].stop())

    def shutdown(self) -> None:
        self._loop.close()
