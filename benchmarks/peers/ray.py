"""Ray by its core API: one actor a process, `num_cpus=0` actors on a head with the machine's own core count.

No dashboard, no usage report; a temporary folder and a token of its own, so that nothing is left in the home
folder.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # authentication stays on, as it is by default

import ray

from .base import NotOffered, fail_one, first_answer, leave, read_every_byte, stall

OBJECT_STORE_BYTES = 4 * 2**30


@ray.remote(num_cpus=0)
class Echo:
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


class RayPeer:
    """A mesh is a list of actor handles."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rb")

    def start(self) -> None:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._folder,
        )

    def spawn(self, n: int) -> list[Any]:
        return [Echo.remote() for _ in range(n)]

    def first_answers(self, mesh: list[Any], with_torch: bool) -> Sequence[tuple[int, bool]]:
        return list(ray.get([actor.first.remote(with_torch) for actor in mesh]))

    def one(self, mesh: list[Any]) -> Any:
        return mesh[0]

    def call(self, actor: Any, value: object) -> object:
        return ray.get(actor.echo.remote(value))

    def awaitable(self, actor: Any, value: object) -> Awaitable[object]:
        return actor.echo.remote(value)

    def submit(self, actor: Any, value: object) -> Any:
        return actor.echo.remote(value)

    def collect(self, pending: list[Any]) -> list[object]:
        return list(ray.get(pending))

    def call_all(self, mesh: list[Any], value: object) -> Sequence[object]:
        return list(ray.get([actor.echo.remote(value) for actor in mesh]))

    def touch(self, actor: Any, value: object) -> object:
        return ray.get(actor.touch.remote(value))

    def share(self, actor: Any, nbytes: int) -> Any:
        raise NotOffered("no one-sided read into the caller's memory")

    def read(self, handle: Any, into: object) -> None:
        raise NotOffered("no one-sided read into the caller's memory")

    def stall(self, actor: Any, path: str) -> Any:
        return actor.stall.remote(path)

    def leave(self, actor: Any, path: str) -> Any:
        return actor.leave.remote(path)

    def fail_one(self, mesh: list[Any], pid: int, seconds: float) -> object:
        return ray.get([actor.fail_one.remote(pid, seconds) for actor in mesh])

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        return asyncio.run(coroutine)

    def stop(self, mesh: list[Any]) -> None:
        for actor in mesh:
            ray.kill(actor)

    def shutdown(self) -> None:
        ray.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
