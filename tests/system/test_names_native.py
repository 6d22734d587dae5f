"""What a native program has beside endpoints: folds, low-level sends, methods as endpoints, commands, hosts."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roost.actors import (
    Accumulator,
    Actor,
    ActorDied,
    ActorStopped,
    Channel,
    Port,
    context,
    current_rank,
    endpoint,
    returns_future,
    send,
)
from roost.mesh import (
    BootstrapCommand,
    HostMesh,
    Point,
    as_endpoint,
    default_bootstrap_cmd,
    shutdown_context,
    this_host,
)

WAIT = 30.0
Spawn = Callable[..., Any]


class Sum(Actor):
    """Endpoints and methods without a decorator, sync ones."""

    def __init__(self, start: int = 10) -> None:
        self.n = start

    @endpoint
    def add(self, by: int) -> int:
        return self.n + by + current_rank().rank

    @endpoint
    def raise_at(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise KeyError(f"rank {rank}")
        return 1

    @endpoint
    def count(self, upto: int) -> Any:
        yield from range(upto)

    def peek(self, factor: int = 1) -> int:
        return self.n * factor

    def answer(self, port: Port[int], value: int) -> None:
        port.send(value + 1)

    def fail(self) -> None:
        raise OSError("no endpoint, and yet it raises")


class AsyncSum(Actor):
    """The same, async."""

    def __init__(self, start: int = 10) -> None:
        self.n = start

    @endpoint
    async def add(self, by: int) -> int:
        return self.n + by + current_rank().rank

    @endpoint
    async def raise_at(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise KeyError(f"rank {rank}")
        return 1

    async def peek(self, factor: int = 1) -> int:
        await asyncio.sleep(0)
        return self.n * factor

    async def answer(self, port: Port[int], value: int) -> None:
        port.send(value + 1)


class MixedSum(Sum):
    """Sync methods of an actor that has a loop."""

    @endpoint
    async def here(self) -> bool:
        return True


class Observer(Actor):
    """Looks at its process, and runs library functions."""

    @endpoint
    def env(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def variables(self) -> list[str]:
        return sorted(os.environ)

    @endpoint
    def argv(self) -> list[str]:
        return Path("/proc/self/cmdline").read_bytes().decode().split("\0")

    @endpoint
    def twice(self, value: int) -> int:
        return double(value).get(timeout=WAIT)

    @endpoint
    async def twice_async(self, value: int) -> int:
        return await double(value)

    @endpoint
    def home(self) -> str:
        return str(context().actor_instance.name)


@returns_future
async def double(value: int) -> int:
    await asyncio.sleep(0.001)
    return value * 2


KINDS = pytest.mark.parametrize("kind", [Sum, AsyncSum, MixedSum])


# --- folds


@KINDS
def test_an_accumulator_folds_the_answers_of_all_ranks(spawn: Spawn, kind: type[Actor]) -> None:
    mesh = spawn(kind, n=2)
    total = Accumulator(mesh.add, 0, lambda so_far, n: so_far + n)
    assert total.accumulate(1).get(timeout=WAIT) == 11 + 12
    assert total.accumulate(by=2).get(timeout=WAIT) == 12 + 13

    async def fold() -> list[int]:
        return await Accumulator(mesh.add, [], lambda found, n: [*found, n]).accumulate(0)

    assert sorted(asyncio.run(fold())) == [10, 11]


@KINDS
def test_an_accumulator_raises_what_a_rank_raises(spawn: Spawn, kind: type[Actor]) -> None:
    fold = Accumulator(spawn(kind, n=2).raise_at, 0, lambda so_far, n: so_far + n)
    with pytest.raises(KeyError, match="rank 1"):
        fold.accumulate(1).get(timeout=WAIT)


def test_an_accumulator_folds_what_a_streaming_endpoint_yields(spawn: Spawn) -> None:
    fold = Accumulator(spawn(Sum, n=2).count, 0, lambda so_far, n: so_far + n)
    assert fold.accumulate(5).get(timeout=WAIT) == 20


# --- send


@KINDS
def test_send_gives_each_answer_to_the_port_with_its_rank(spawn: Spawn, kind: type[Actor]) -> None:
    mesh = spawn(kind, n=2)
    port, receiver = Channel.open_ranked()
    send(mesh.add, (1,), {}, port)
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [(0, 11), (1, 12)]
    send(mesh.add, (), {"by": 1}, port, selection=1)
    assert receiver.recv().get(timeout=WAIT) == (1, 12)
    send(mesh.add, (1,), {}, port, selection="choose")
    assert receiver.recv().get(timeout=WAIT) in ((0, 11), (1, 12))


def test_send_gives_failures_to_the_port_too(spawn: Spawn) -> None:
    mesh = spawn(Sum, n=2)
    port, receiver = Channel.open()
    send(mesh.raise_at, (0,), {}, port)
    found: list[Any] = []
    for _ in range(2):
        future = receiver.recv()
        error = future.exception(timeout=WAIT)
        found.append(type(error).__name__ if error is not None else future.get())
    assert sorted(map(str, found)) == ["1", "KeyError"]


def test_send_without_a_port_waits_for_nothing_and_checks_the_arguments(spawn: Spawn) -> None:
    mesh = spawn(Sum, n=2)
    send(mesh.add, (1,), {})
    send(mesh.add, (1,), {}, None, selection=0)
    with pytest.raises(TypeError, match=r"Sum\.add"):
        send(mesh.add, (), {})
    with pytest.raises(IndexError, match="2 ranks"):
        send(mesh.add, (1,), {}, None, selection=2)
    with pytest.raises(ValueError, match="choose"):
        send(mesh.add, (1,), {}, None, selection="some")  # type: ignore[arg-type]
    assert mesh.add.call(0).get(timeout=WAIT).values() == [10, 11]


def test_send_reaches_a_port_of_another_process(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("sum", Sum)
    holder = procs.slice(gpus=0).spawn("holder", PortHolder)
    port = holder.open.call_one().get(timeout=WAIT)
    send(mesh.add, (1,), {}, port)
    assert sorted(holder.take.call_one(2).get(timeout=WAIT)) == [(0, 11), (1, 12)]


class PortHolder(Actor):
    """Receives with ranks."""

    @endpoint
    def open(self) -> Port[Any]:
        port, self.receiver = Channel.open_ranked()
        return port

    @endpoint
    def take(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=WAIT) for _ in range(count)]


# --- methods as endpoints


@KINDS
def test_a_method_without_decorator_is_called_as_an_endpoint(spawn: Spawn, kind: type[Actor]) -> None:
    mesh = spawn(kind, n=2)
    peek = as_endpoint(mesh.peek)
    assert peek.call(2).get(timeout=WAIT).values() == [20, 20]
    assert peek.call(factor=3).get(timeout=WAIT).values() == [30, 30]
    assert as_endpoint(mesh.slice(gpus=1).peek).call_one().get(timeout=WAIT) == 10
    with pytest.raises(TypeError, match=r"peek"):
        peek.call(1, 2)
    again = pickle.loads(pickle.dumps(peek))
    assert again.call().get(timeout=WAIT).values() == [10, 10]


@KINDS
def test_a_method_may_answer_through_a_port(spawn: Spawn, kind: type[Actor]) -> None:
    answer = as_endpoint(spawn(kind, n=1).slice(gpus=0).answer, explicit_response_port=True)
    assert answer.call_one(4).get(timeout=WAIT) == 5


def test_what_a_method_raises_comes_back(spawn: Spawn) -> None:
    with pytest.raises(OSError, match="and yet it raises"):
        as_endpoint(spawn(Sum, n=1).slice(gpus=0).fail).call_one().get(timeout=WAIT)


def test_a_method_that_is_not_wrapped_says_how_to(spawn: Spawn) -> None:
    mesh = spawn(Sum, n=1)
    with pytest.raises(RuntimeError, match=r"Sum\.peek is a method but no endpoint: .*@endpoint.*as_endpoint"):
        mesh.peek(1)
    with pytest.raises(AttributeError, match="as_endpoint"):
        mesh.peek.call(1)
    with pytest.raises(AttributeError, match="no endpoint 'pek'"):
        mesh.pek  # noqa: B018
    with pytest.raises(TypeError, match="as_endpoint takes a method of a mesh"):
        as_endpoint(len)
    assert as_endpoint(mesh.add) is mesh.add


# --- library functions


def test_a_library_function_runs_in_scripts_and_in_endpoints(spawn: Spawn) -> None:
    observer = spawn(Observer, n=1).slice(gpus=0)
    assert double(2).get(timeout=WAIT) == 4
    assert observer.twice.call_one(3).get(timeout=WAIT) == 6
    assert observer.twice_async.call_one(4).get(timeout=WAIT) == 8


# --- commands


def test_each_rank_may_have_a_command_of_its_own(site: Any) -> None:
    os.environ.pop("OF_RANK", None)

    def command(point: Point) -> BootstrapCommand | None:
        return default_bootstrap_cmd().with_env({"OF_RANK": f"{point.rank} of {point.size()}"}) if point.rank else None

    observer = site.spawn_procs(2, bootstrap_command=command).spawn("o", Observer)
    assert observer.env.call("OF_RANK", "RANK").get(timeout=WAIT).values() == [[None, "0"], ["1 of 2", "1"]]
    assert "OF_RANK" not in os.environ
    other = site.spawn_procs(2).spawn("o", Observer)
    assert other.env.call("OF_RANK").get(timeout=WAIT).values() == [[None], [None]], "it stayed with its rank"


def test_a_process_may_start_without_the_environment_of_its_host(site: Any) -> None:
    command = BootstrapCommand(sys.executable, args=default_bootstrap_cmd().args, env={"ONLY": "1"}, inherit_env=False)
    observer = site.spawn_procs(2, bootstrap_command=command).spawn("o", Observer)
    kept = {"PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LC_CTYPE", "ONLY"}
    ranks = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    for names in observer.variables.call().get(timeout=WAIT).values():
        assert "ONLY" in names
        assert "RANK" in names
        more = set(names) - kept - ranks
        assert not [name for name in more if not name.startswith(("ROOST_", "OMP_", "OPENBLAS_", "MKL_"))]


def test_a_command_runs_python_under_another_program_that_is_told_a_name(site: Any) -> None:
    script = "read -r -d '' TOLD < /proc/$$/cmdline; export TOLD; exec \"$@\""
    command = BootstrapCommand("/bin/bash", arg0="fancy", args=["-c", script, "the-script"])
    observer = site.spawn_procs(1, bootstrap_command=command).spawn("o", Observer)
    assert observer.env.call("TOLD").get(timeout=WAIT).values() == [["fancy"]]


def test_commands_of_the_wrong_kind_are_refused_before_anything_starts(site: Any) -> None:
    with pytest.raises(TypeError, match="a BootstrapCommand, or None, is wanted"):
        site.spawn_procs(2, bootstrap_command=lambda point: "python")
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(4\)"):
        this_host().spawn_procs({"gpus": 4}, proc_bind=[{"cpus": "0"}])


# --- hosts


def test_a_host_mesh_knows_its_hosts_and_a_proc_mesh_its_host_mesh(site: Any) -> None:
    procs = site.spawn_procs(2)
    hosts = procs.host_mesh
    assert isinstance(hosts, HostMesh)
    assert len(hosts) == site.agents
    assert hosts.initialized.get(timeout=WAIT)
    assert hosts.region.ranks() == tuple(range(site.agents))
    assert len(hosts.host_names) == site.agents
    assert len(procs.slice(gpus=1).host_mesh) == 1
    again = hosts.spawn_procs({"again": 1})
    assert again.spawn("o", Observer).flatten("x").home.call().get(timeout=WAIT).values() == ["o"] * site.agents
    again.stop().get(timeout=WAIT)


def test_stopping_hosts_ends_what_was_spawned_on_them_and_keeps_them(site: Any) -> None:
    procs = site.spawn_procs(2)
    observer = procs.spawn("o", Observer)
    observer.home.call().get(timeout=WAIT)
    procs.host_mesh.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped, match="hosts are given back"):
        observer.home.call().get(timeout=WAIT)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("late", Observer)
    assert site.spawn_procs(2).spawn("o", Observer).home.call().get(timeout=WAIT).values() == ["o", "o"]


def test_stopping_one_of_two_hosts_leaves_the_processes_of_the_other(site: Any) -> None:
    if site.agents == 1:
        pytest.skip("one host")
    observer = site.spawn_procs(2).spawn("o", Observer)
    observer.home.call().get(timeout=WAIT)
    site.hosts.slice(hosts=0).stop().get(timeout=WAIT)
    assert observer.slice(gpus=1).home.call_one().get(timeout=WAIT) == "o"
    with pytest.raises((ActorDied, ActorStopped)):
        observer.slice(gpus=0).home.call_one().get(timeout=WAIT)


def test_a_host_mesh_is_a_context_of_both_kinds(site: Any) -> None:
    with site.spawn_procs(2).host_mesh as hosts:
        procs = hosts.spawn_procs({"gpus": 1})
    assert "stopped" in repr(procs)

    async def use() -> Any:
        async with hosts:
            return hosts.spawn_procs({"gpus": 1})

    assert "stopped" in repr(asyncio.run(use()))


def test_a_host_mesh_that_was_shut_down_is_of_no_use(run_script: Any) -> None:
    script = run_script(
        """
        from roost.controller import ProcessJob

        if __name__ == "__main__":
            with ProcessJob({"h": 2}) as job:
                hosts = job.state().h
                hosts.slice(hosts=1).shutdown().get(10)
                for use in (hosts.spawn_procs, hosts.slice(hosts=1).spawn_procs, hosts.resources):
                    try:
                        use()
                    except RuntimeError as error:
                        print(error)
                procs = hosts.slice(hosts=0).spawn_procs()
                print(procs.initialized.get(20), "shut down" in repr(hosts))
                hosts.shutdown().get(10)
                hosts.shutdown().get(10)
        """
    )
    lines = script.out.splitlines()
    assert [line.startswith("HostMesh has already been shut down (hosts h1)") for line in lines[:3]] == [True] * 3
    assert lines[3] == "True True"


def test_this_host_may_be_shut_down_and_taken_anew(run_script: Any) -> None:
    script = run_script(
        """
        from roost import Actor, endpoint, this_host


        class Echo(Actor):
            @endpoint
            def echo(self, x):
                return x


        if __name__ == "__main__":
            host = this_host()
            echo = host.spawn_procs().spawn("e", Echo)
            print(echo.echo.call_one(1).get(20))
            host.shutdown().get(10)
            try:
                echo.echo.call_one(2).get(20)
            except RuntimeError:
                print("gone")
            try:
                host.spawn_procs()
            except RuntimeError as error:
                print(str(error)[:38])
            print(this_host().spawn_procs().spawn("e", Echo).echo.call_one(3).get(20))
        """
    )
    assert script.out.splitlines() == ["1", "gone", "HostMesh has already been shut down (h", "3"]


def test_shutdown_context_ends_everything_and_a_program_may_start_again(run_script: Any) -> None:
    script = run_script(
        """
        import asyncio
        from roost import Actor, endpoint, this_host
        from roost.mesh import shutdown_context


        class Echo(Actor):
            @endpoint
            def echo(self, x):
                return x


        async def main():
            echo = this_host().spawn_procs().spawn("e", Echo)
            print(await echo.echo.call_one(1))
            await shutdown_context(timeout=20)
            try:
                await echo.echo.call_one(2)
            except RuntimeError as error:
                print(type(error).__name__)


        if __name__ == "__main__":
            shutdown_context().get(5)
            asyncio.run(main())
            echo = this_host().spawn_procs().spawn("e", Echo)
            print(echo.echo.call_one(3).get(20))
            shutdown_context().get(20)
        """
    )
    assert script.out.split() == ["1", "ActorStopped", "3"]


def test_shutdown_context_where_nothing_runs_is_done_at_once(run_script: Any) -> None:
    script = run_script("from roost.mesh import shutdown_context; print(shutdown_context().get(5))")
    assert script.out.strip() == "None"
    assert threading.current_thread() is threading.main_thread()
    assert callable(shutdown_context)
