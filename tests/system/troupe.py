"""The actors that the system tests call. Imported by workers, so it imports nothing heavy."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from roost.actors import Actor, MeshFailure, Port, concurrent_endpoint, context, current_rank, endpoint

SITE = """
import sys
from roost import ProcessJob, this_host
one = sys.argv[1] == "one agent"
hosts = this_host() if one else ProcessJob({"h": 2}).state().h
def spawn_procs(n):
    return hosts.spawn_procs({"gpus": n}) if one else hosts.spawn_procs({"gpus": n // 2}).flatten("gpus")
"""
"""The head of a script that runs on the agents its first argument says."""


def stop_at(barrier: str) -> None:
    """Stand at a barrier of the test until it is opened."""
    with open(barrier, "rb", buffering=0) as file:
        file.read(1)


class Player(Actor):
    """All its endpoints are sync."""

    def __init__(self, start: Any = None, *, scale: int = 1) -> None:
        self.start = start
        self.scale = scale
        self.log: list[Any] = []
        self.kept: Any = None
        self.threads = {"init": threading.get_ident()}

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def arguments(self) -> tuple[Any, int]:
        return self.start, self.scale

    @endpoint
    def add(self, a: int, b: int = 10, *, c: int = 0) -> int:
        return a + b + c

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def place(self) -> tuple[int, str]:
        from roost.actors.node import current_node

        node = current_node()
        assert node is not None
        return os.getpid(), node.node_id

    @endpoint
    def ranks(self) -> tuple[dict[str, int], dict[str, int]]:
        return dict(current_rank()), dict(context().actor_instance.rank)

    @endpoint
    def by_rank(self, values: list[Any]) -> Any:
        return values[current_rank().rank]

    @endpoint
    def note(self, item: Any) -> None:
        self.log.append(item)

    @endpoint
    def noted(self) -> list[Any]:
        return self.log

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def recall(self) -> Any:
        return self.kept

    @endpoint
    def change(self) -> None:
        """Change what was kept, in place."""
        self.kept[0] = 99

    @endpoint
    def stand(self, barrier: str, port: Port[Any] | None = None) -> str:
        """Say that it has begun, then stand at the barrier."""
        if port is not None:
            port.send(current_rank().rank)
        stop_at(barrier)
        return "passed"

    @endpoint
    def stand_if(self, rank: int, barrier: str) -> int:
        """Only one rank stands."""
        if current_rank().rank == rank:
            stop_at(barrier)
        return current_rank().rank

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def watch_for_cancel(self, port: Port[Any]) -> str:
        """Run until the caller no longer waits."""
        port.send("running")
        until = time.monotonic() + 30
        while not context().cancelled and time.monotonic() < until:
            pass
        port.send("told" if context().cancelled else "never told")
        return "ended"

    @endpoint
    def send_to(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def fail_to(self, port: Port[Any]) -> None:
        port.exception(KeyError("through a port"))

    @endpoint
    def open_channel(self) -> Port[Any]:
        from roost.actors import Channel

        port, self.receiver = Channel.open()
        return port

    @endpoint
    def receive(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=30) for _ in range(count)]

    @endpoint
    def call_other(self, mesh: Any, value: Any) -> list[Any]:
        return mesh.echo.call(value).get(timeout=30).values()

    @endpoint(explicit_response_port=True)
    def answer_now(self, port: Port[Any], value: Any) -> str:
        port.send(value)
        return "this is not the answer"

    @endpoint(explicit_response_port=True)
    def answer_later(self, port: Port[Any]) -> None:
        self.kept = port

    @endpoint
    def answer_kept(self, value: Any) -> None:
        self.kept.send(value)

    @endpoint(explicit_response_port=True)
    def answer_with_error(self, port: Port[Any]) -> None:
        port.exception(ValueError("said through the port"))

    @endpoint(explicit_response_port=True)
    def answer_elsewhere(self, port: Port[Any], mesh: Any, value: Any) -> None:
        """Another actor answers."""
        mesh.send_to.broadcast(port, [value])

    @endpoint
    def apply(self, function: Any, *args: Any) -> Any:
        return function(*args)

    @endpoint
    def loop_seen(self) -> tuple[bool, int]:
        """Whether a running loop is visible, and what asyncio.run gives."""
        try:
            asyncio.get_running_loop()
            seen = True
        except RuntimeError:
            seen = False

        async def work() -> int:
            await asyncio.sleep(0)
            return 7

        return seen, asyncio.run(work())

    @endpoint
    def thread(self) -> tuple[int, int, bool]:
        here = threading.current_thread()
        return self.threads["init"], here.ident or 0, here is threading.main_thread()


_spinning: dict[str, bool] = {}


class Spinner(Actor):
    """Busy in pure Python until another actor of its process lets it go."""

    @endpoint
    def spin(self, port: Port[Any]) -> bool:
        _spinning["go"] = True
        port.send("spinning")
        until = time.monotonic() + 30
        while _spinning["go"]:
            if time.monotonic() > until:
                return False
        return True

    @endpoint
    def release(self) -> None:
        _spinning["go"] = False


class Mixed(Actor):
    """Sync, async and concurrent endpoints in one actor."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.event = asyncio.Event()
        self.threads: dict[str, int] = {"init": threading.get_ident()}
        self.on_main = threading.current_thread() is threading.main_thread()

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def aecho(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    @endpoint
    def note(self, item: Any) -> None:
        self.log.append(item)

    @endpoint
    async def anote(self, item: Any) -> None:
        await asyncio.sleep(0)
        self.log.append(item)

    @endpoint
    def noted(self) -> list[Any]:
        return self.log

    @concurrent_endpoint
    async def cnoted(self) -> list[Any]:
        return list(self.log)

    @endpoint
    async def wait(self, port: Port[Any] | None = None) -> str:
        """Hold the actor until `wake`."""
        if port is not None:
            port.send("waiting")
        await self.event.wait()
        return "woken"

    @concurrent_endpoint
    async def cwait(self, port: Port[Any]) -> str:
        port.send("waiting")
        await self.event.wait()
        return "woken"

    @concurrent_endpoint
    async def wake(self) -> None:
        self.event.set()

    @endpoint
    async def await_cancel(self, port: Port[Any]) -> None:
        port.send("waiting")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            port.send("cancelled")
            raise
        port.send("slept")

    @endpoint
    async def in_task(self) -> tuple[bool, str, int]:
        """Is there a task, does `asyncio.timeout` work, does a TaskGroup."""
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(30)
            timed = "slept"
        except TimeoutError:
            timed = "timed out"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, i)) for i in range(3)]
        return asyncio.current_task() is not None, timed, sum(task.result() for task in tasks)

    @endpoint
    def loop_seen(self) -> tuple[bool, int]:
        try:
            asyncio.get_running_loop()
            seen = True
        except RuntimeError:
            seen = False
        return seen, asyncio.run(asyncio.sleep(0, 7))

    @endpoint
    async def call_other(self, mesh: Any, value: Any) -> list[Any]:
        return (await mesh.echo.call(value)).values()

    @endpoint
    async def note_thread(self) -> None:
        self.threads["async"] = threading.get_ident()

    @endpoint
    def own(self, mesh: Any) -> None:
        pass

    @endpoint
    def all_threads(self) -> tuple[dict[str, int], bool]:
        return self.threads | {"sync": threading.get_ident()}, self.on_main

    @concurrent_endpoint
    async def rank_here(self, _: Any) -> int:
        """Context is each task's own."""
        before = current_rank().rank
        await asyncio.sleep(0)
        assert current_rank().rank == before
        return before


class Odd(Exception):
    """Its constructor takes other arguments than those it keeps."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: {code}")
        self.code = code


class Faulty(Actor):
    """Fails in every way."""

    def __init__(self, fail_at: int = -1) -> None:
        if context().actor_instance.rank.rank == fail_at:
            raise ValueError("the constructor fails")

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self, error: BaseException) -> None:
        raise error

    @endpoint
    async def afail(self, error: BaseException) -> None:
        raise error

    @endpoint
    def run(self, source: str) -> Any:
        """Run the body of a function, which may raise what cannot be sent here."""
        scope = dict(globals())
        exec("def body():\n" + "".join(f"    {line}\n" for line in source.split("\n")), scope)
        return scope["body"]()

    @endpoint
    def fail_at(self, ranks: list[int], barrier: str | None = None) -> int:
        """Some ranks fail; the others stand at the barrier, if there is one."""
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(f"rank {rank} fails")
        if barrier is not None:
            stop_at(barrier)
        return rank

    @endpoint
    def kill_me(self, number: int) -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    @endpoint
    def exit_me(self, code: int) -> None:
        os._exit(code)

    @endpoint
    def say_and_die(self, text: str) -> None:
        print(text, file=sys.stderr)
        os.kill(os.getpid(), 9)
        time.sleep(30)

    @endpoint
    def sleep(self, seconds: float, port: Port[Any] | None = None) -> None:
        if port is not None:
            port.send(os.getpid())
        time.sleep(seconds)

    @endpoint
    def stand(self, barrier: str, port: Port[Any]) -> str:
        port.send("standing")
        stop_at(barrier)
        return "passed"

    @endpoint
    def fork_children(self, count: int, new_session: bool) -> list[int]:
        """Fork as a DataLoader does; the children never return."""
        pids = []
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                if new_session:
                    os.setsid()
                while True:
                    time.sleep(3600)
            pids.append(pid)
        return pids


class Spawner(Actor):
    """Spawns actors of its own, and has no hook for their failures."""

    @endpoint
    def spawn_here(self, count: int, hosts: Any = None) -> Any:
        """An actor mesh on new processes of this host, or of others."""
        from roost.mesh import this_host

        self.procs = (hosts or this_host()).spawn_procs({"gpus": count})
        self.mesh = self.procs.spawn("owned", Faulty)
        return self.mesh, self.mesh.pid.call().get(timeout=30).values()

    @endpoint
    def break_owned(self, how: str) -> None:
        """Let rank 0 of what it owns fail, and look at no answer."""
        first = self.mesh.slice(gpus=0)
        if how == "killed":
            first.kill_me.broadcast(9)
        else:
            first.fail.broadcast(ValueError("broadcast"))

    @endpoint
    def look_at(self, mesh: Any) -> str:
        """What somebody else in the owner's process learns of the mesh."""
        return type(mesh.sleep.call(30).exception(timeout=30)).__name__

    @endpoint
    def look_at_own(self) -> str:
        return type(self.mesh.sleep.call(30).exception(timeout=30)).__name__

    @endpoint
    def stand(self, barrier: str, port: Port[Any]) -> None:
        port.send("standing")
        stop_at(barrier)


class Owner(Spawner):
    """`verdict` says what its `__supervise__` does."""

    def __init__(self, verdict: str = "falsy", port: Port[Any] | None = None) -> None:
        self.verdict = verdict
        self.port = port
        self.seen: list[Any] = []
        self.threads = {"init": threading.get_ident()}

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.threads["supervise"] = threading.get_ident()
        self.seen.append((failure.mesh_name, failure.crashed_ranks, failure.report()))
        if self.verdict == "raises":
            raise LookupError("the hook fails")
        return self.verdict == "handled"

    def __cleanup__(self, error: Exception | None) -> None:
        if self.port is not None:
            self.port.send(
                ("cleanup", None if error is None else str(error), threading.get_ident() == self.threads["init"])
            )

    @endpoint
    def hooks(self) -> tuple[list[Any], dict[str, int]]:
        return self.seen, self.threads | {"endpoint": threading.get_ident()}


class AsyncOwner(Owner):
    """The same with an async hook."""

    async def __supervise__(self, failure: MeshFailure) -> bool:  # type: ignore[override]
        await asyncio.sleep(0)
        return Owner.__supervise__(self, failure)
