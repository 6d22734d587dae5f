"""Programs for torchrun on a mesh: unmodified scripts, the variables, and the port that nobody can take."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from roost.actors import Actor, endpoint
from roost.mesh import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async, this_host

pytest.importorskip("torch")

WAIT = 100.0
SCRIPT = str(Path(__file__).with_name("spmd_script.py"))


class Reducer(Actor):
    """What any actor of a user's does with torch.distributed."""

    @endpoint
    def reduce(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return float(total.item())

    @endpoint
    def env(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def on_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    @endpoint
    def program(self) -> tuple[list[str], bool]:
        return sys.argv, any("tests/system" in entry for entry in sys.path)


def run(spmd: Any, args: list[str]) -> list[bool]:
    ranks = spmd.flatten("rank")
    address, port = ranks.slice(rank=0).get_host_port.call_one("ipv4").get(timeout=WAIT)
    answers: list[bool] = ranks.main.call(address, port, args).get(timeout=WAIT).values()
    return answers


def test_an_unmodified_script_runs_again_and_again_in_the_processes_of_a_mesh(site: Any, tmp_path: Path) -> None:
    procs = site.spawn_procs(2)
    spmd = procs.spawn("spmd", SPMDActor)
    reducer = procs.spawn("reducer", Reducer)
    before = reducer.program.call().get(timeout=WAIT).values()
    for turn in ("one", "two"):
        folder = tmp_path / turn
        folder.mkdir()
        assert run(spmd, [SCRIPT, str(folder), "--lr", "0.1"]) == [True, True]
        assert sorted(path.read_text() for path in folder.iterdir()) == ["3.0 2 --lr 0.1"] * 2
    assert reducer.program.call().get(timeout=WAIT).values() == before, "argv and path are put back"


def test_a_module_runs_as_with_python_m(site: Any, tmp_path: Path) -> None:
    spmd = site.spawn_procs(2, env={"PYTHONPATH": str(Path(SCRIPT).parent)}).spawn("spmd", SPMDActor)
    assert run(spmd, ["-m", "spmd_script", str(tmp_path)]) == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_what_a_script_raises_or_exits_with_is_raised(tmp_path: Path) -> None:
    procs = this_host().spawn_procs()
    spmd = procs.spawn("spmd", SPMDActor)
    address, port = spmd.get_host_port.call_one("ipv4").get(timeout=WAIT)
    with pytest.raises(ValueError, match="the script fails"):
        spmd.main.call_one(address, port, [SCRIPT, str(tmp_path), "--raise"]).get(timeout=WAIT)
    address, port = spmd.get_host_port.call_one("ipv4").get(timeout=WAIT)
    with pytest.raises(RuntimeError, match=r"spmd_script\.py left with exit code 3"):
        spmd.main.call_one(address, port, [SCRIPT, str(tmp_path), "--exit"]).get(timeout=WAIT)
    with pytest.raises(FileNotFoundError, match="no_such"):
        spmd.main.call_one(address, port, ["no_such.py"]).get(timeout=WAIT)
    with pytest.raises(ValueError, match="a script, or -m and a module"):
        spmd.main.call_one(address, port, ["-m"]).get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)


def test_the_environment_of_torchrun_is_set_and_actors_join_without_arguments(site: Any) -> None:
    procs = site.spawn_procs(2)
    setup_torch_elastic_env(procs)
    reducer = procs.spawn("reducer", Reducer)
    assert reducer.on_main_thread.call().get(timeout=WAIT).values() == [True, True]
    assert reducer.reduce.call().get(timeout=WAIT).values() == [3.0, 3.0]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    one_host = [["0", "2", "0", "2", "0", "1"], ["1", "2", "1", "2", "0", "1"]]
    two_hosts = [["0", "2", "0", "1", "0", "2"], ["1", "2", "0", "1", "1", "2"]]
    assert reducer.env.call(*names).get(timeout=WAIT).values() == (one_host if site.agents == 1 else two_hosts)
    roles = reducer.env.call("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME").get(timeout=WAIT).values()
    assert roles == [["0", "2", "rank"], ["1", "2", "rank"]]
    addresses = reducer.env.call("MASTER_ADDR", "MASTER_PORT").get(timeout=WAIT).values()
    assert addresses[0] == addresses[1]


def test_it_is_set_again_for_another_group_from_a_coroutine_and_for_a_slice(site: Any) -> None:
    procs = site.spawn_procs(4)
    reducer = procs.spawn("reducer", Reducer)
    asyncio.run(setup_torch_elastic_env_async(procs))
    assert reducer.reduce.call().get(timeout=WAIT).values() == [10.0] * 4
    part = slice(1, 3)
    setup_torch_elastic_env(procs.slice(gpus=part), use_ipaddr="ipv4")
    assert reducer.slice(gpus=part).reduce.call().get(timeout=WAIT).values() == [3.0, 3.0]
    assert reducer.slice(gpus=part).env.call("RANK").get(timeout=WAIT).values() == [["0"], ["1"]]


def test_a_port_that_is_asked_for_is_bound_at_once_or_named_as_taken() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=r"in use|already"):
            setup_torch_elastic_env(procs, "127.0.0.1", port)
    setup_torch_elastic_env(procs, "127.0.0.1", port)
    reducer = procs.spawn("reducer", Reducer)
    assert reducer.env.call("MASTER_PORT").get(timeout=WAIT).values() == [[str(port)]] * 2
    assert reducer.reduce.call().get(timeout=WAIT).values() == [3.0, 3.0]
    with pytest.raises(ValueError, match="ipv6"):
        setup_torch_elastic_env(procs, use_ipaddr="ipv5")  # type: ignore[arg-type]
    procs.stop().get(timeout=WAIT)


def test_the_port_is_held_from_the_moment_it_is_known() -> None:
    procs = this_host().spawn_procs()
    spmd = procs.spawn("spmd", SPMDActor)
    address, port = spmd.get_host_port.call_one("ipv4").get(timeout=WAIT)
    for _ in range(2):
        with pytest.raises(OSError, match=r"in use"), socket.socket() as other:
            other.bind((address, port))
        spmd.setup_env.call_one(address, port).get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
