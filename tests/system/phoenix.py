"""The actors of the tests of restarts. Imported by workers, so it imports nothing heavy."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from roost.actors import Actor, MeshFailure, Port, Restart, endpoint


def refuse_when(path: str) -> Any:
    """A bootstrap that fails once this file is there."""

    def bootstrap() -> None:
        if os.path.exists(path):
            raise RuntimeError("the bootstrap refuses")

    return bootstrap


class Phoenix(Actor):
    """Remembers what it was given and what `__restore__` told it."""

    def __init__(self, given: Any = None, *, fail_if: str = "") -> None:
        self.given = given
        self.events: list[Any] = ["init"]
        if fail_if and os.path.exists(fail_if):
            raise ValueError("the constructor refuses")

    def __restore__(self, restart: Restart) -> None:
        self.events.append(restart)

    @endpoint
    def look(self) -> tuple[int, Any, list[Any]]:
        return os.getpid(), self.given, self.events

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def on_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def note(self, what: Any) -> None:
        self.events.append(what)

    @endpoint
    def change(self) -> None:
        self.given.append("changed")

    @endpoint
    def die(self, number: int = 9) -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    @endpoint
    def stand(self, port: Port[Any], barrier: str) -> str:
        port.send(os.getpid())
        with open(barrier, "rb", buffering=0) as file:
            file.read(1)
        return "passed"

    @endpoint
    def fail(self) -> None:
        raise ValueError("the endpoint fails")

    @endpoint
    def hold(self, mesh: Any) -> None:
        self.held = mesh

    @endpoint
    def call_held(self, value: Any) -> list[Any]:
        return self.held.echo.call(value).get(timeout=30).values()

    @endpoint
    def call(self, mesh: Any, value: Any) -> list[Any]:
        return mesh.echo.call(value).get(timeout=30).values()

    @endpoint
    def environment(self, name: str) -> tuple[str | None, str | None]:
        return os.environ.get(name), os.environ.get("RANK")


class AsyncPhoenix(Phoenix):
    """The same with an async hook, and no other async endpoint."""

    async def __restore__(self, restart: Restart) -> None:  # type: ignore[override]
        import asyncio

        await asyncio.sleep(0.01)
        Phoenix.__restore__(self, restart)


class BadRestore(Phoenix):
    """Its hook raises on ranks that are fresh, or on those that are not."""

    def __restore__(self, restart: Restart) -> None:
        if restart.fresh == self.given:
            raise LookupError("the hook fails")


class Keeper(Actor):
    """An actor that owns a mesh: respawns it when asked, or has a policy do so."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(failure.reason)
        return True

    @endpoint
    def own(self, count: int, options: dict[str, Any]) -> list[int]:
        from roost.mesh import RestartPolicy, this_host

        policy = RestartPolicy(**options) if options else None
        self.procs = this_host().spawn_procs({"gpus": count}, restart=policy)
        self.mesh = self.procs.spawn("owned", Phoenix, "kept")
        pids: list[int] = self.mesh.pid.call().get(timeout=30).values()
        return pids

    @endpoint
    def renew(self) -> list[Any]:
        self.procs.respawn().get(timeout=30)
        return self.look()

    @endpoint
    def look(self) -> list[Any]:
        return [(pid, given, self.procs.epoch) for pid, given, _ in self.mesh.look.call().get(timeout=30).values()]

    @endpoint
    def heard(self) -> list[str]:
        return self.failures

    @endpoint
    def kill_one(self) -> str:
        return type(self.mesh.slice(gpus=0).die.call_one().exception(timeout=30)).__name__


class Link(Actor):
    """One of a chain: it owns the next."""

    @endpoint
    def extend(self, names: list[str]) -> list[int]:
        from roost.mesh import this_host

        if not names:
            return [os.getpid()]
        self.procs = this_host().spawn_procs(name=names[0])
        self.next = self.procs.spawn(names[0], Link)
        found: list[int] = self.next.extend.call_one(names[1:]).get(timeout=30)
        return [os.getpid(), *found]
