"""Roost by its public interface, as a user's script has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

import roost
from roost.actors import Actor, endpoint
from roost.mesh import this_host

from .base import fail_one, first_answer, leave, read_every_byte, sevens, stall


class Echo(Actor):
    """The actor under test."""

    @endpoint
    def echo(self, value: object) -> object:
        return value

    @endpoint
    def first(self, with_torch: bool) -> tuple[int, bool]:
        return first_answer(with_torch)

    @endpoint
    def touch(self, value: object) -> object:
        return read_every_byte(value)

    @endpoint
    def share(self, nbytes: int) -> Any:
        from roost.rdma import RDMABuffer

        self.shared = sevens(nbytes)
        return RDMABuffer(self.shared)

    @endpoint
    def stall(self, path: str) -> None:
        stall(path)

    @endpoint
    def leave(self, path: str) -> None:
        leave(path)

    @endpoint
    def fail_one(self, pid: int, seconds: float) -> None:
        fail_one(pid, seconds)


class RoostPeer:
    """A mesh is (its processes, its actors)."""

    def start(self) -> None:
        this_host()

    def spawn(self, n: int) -> tuple[Any, Any]:
        procs = this_host().spawn_procs({"gpus": n})
        return procs, procs.spawn("echo", Echo)

    def first_answers(self, mesh: tuple[Any, Any], with_torch: bool) -> Sequence[tuple[int, bool]]:
        return list(mesh[1].first.call(with_torch).get().values())

    def one(self, mesh: tuple[Any, Any]) -> Any:
        return mesh[1].slice(gpus=0)

    def call(self, actor: Any, value: object) -> object:
        return actor.echo.call_one(value).get()

    def awaitable(self, actor: Any, value: object) -> Awaitable[object]:
        return actor.echo.call_one(value)

    def submit(self, actor: Any, value: object) -> Any:
        return actor.echo.call_one(value)

    def collect(self, pending: list[Any]) -> list[object]:
        return [future.get() for future in pending]

    def call_all(self, mesh: tuple[Any, Any], value: object) -> Sequence[object]:
        return list(mesh[1].echo.call(value).get().values())

    def touch(self, actor: Any, value: object) -> object:
        return actor.touch.call_one(value).get()

    def share(self, actor: Any, nbytes: int) -> Any:
        return actor.share.call_one(nbytes).get()

    def read(self, handle: Any, into: object) -> None:
        handle.read_into(into).get()

    def stall(self, actor: Any, path: str) -> Any:
        return actor.stall.call_one(path)

    def leave(self, actor: Any, path: str) -> Any:
        return actor.leave.call_one(path)

    def fail_one(self, mesh: tuple[Any, Any], pid: int, seconds: float) -> object:
        return mesh[1].fail_one.call(pid, seconds).get()

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        return asyncio.run(coroutine)

    def stop(self, mesh: tuple[Any, Any]) -> None:
        mesh[0].stop().get()

    def shutdown(self) -> None:
        roost.shutdown()
