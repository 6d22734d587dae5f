"""Soaks: the same again and again, and nothing grows. Run by `make test-long`."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from troupe import Mixed, Player

PATIENCE = 60

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MiB = 1 << 20


@dataclass(frozen=True)
class Holding:
    """What one process holds."""

    command: str
    resident: int
    descriptors: int
    threads: int


def look() -> dict[int, Holding]:
    """Every process of the job by pid: this one, its agents, their zygotes, the workers."""
    me = psutil.Process()
    return {
        process.pid: Holding(
            " ".join(process.cmdline()[-2:]), process.memory_info().rss, process.num_fds(), process.num_threads()
        )
        for process in [me, *me.children(recursive=True)]
    }


def soak(once: Callable[[int], None], rounds: int, warm: int, growth: int) -> None:
    """`rounds` after `warm`: no process more, none that holds more but for `growth` bytes of memory."""
    for number in range(warm):
        once(number)
    gc.collect()
    before = look()
    begin = time.monotonic()
    for number in range(rounds):
        once(number)
    seconds = time.monotonic() - begin
    gc.collect()
    after = look()
    print(f"\n{rounds} rounds, {seconds / rounds * 1e3:.2f} ms each")
    for pid, holding in after.items():
        grown = holding.resident - before[pid].resident if pid in before else 0
        print(f"  {pid}: {holding.resident / MiB:.1f} MiB resident, {grown / MiB:+.1f}; {holding.command}")
    assert after.keys() == before.keys(), "as many processes as before, and the same"
    for pid, holding in after.items():
        assert (holding.descriptors, holding.threads) == (before[pid].descriptors, before[pid].threads), holding
        assert holding.resident - before[pid].resident < growth, f"{holding} held {before[pid].resident} bytes"


@pytest.mark.parametrize("cls", [Player, Mixed])
def test_actors_that_come_and_go_on_standing_processes_leave_nothing(site: Any, cls: type) -> None:
    """The warm-up fills what a worker remembers: how its last 4,096 actors ended, so that late calls learn why."""
    procs = site.spawn_procs(2)
    standing = procs.spawn("standing", Player)

    def once(number: int) -> None:
        mesh = procs.spawn("player", cls)
        assert mesh.echo.call(number).get(PATIENCE).values() == [number] * 2
        mesh.stop().get(PATIENCE)

    soak(once, 10_000, 4_500, growth=6 * MiB)
    assert standing.echo.call("stands").get(PATIENCE).values() == ["stands"] * 2


def test_actors_that_actors_spawn_and_stop_leave_nothing(site: Any) -> None:
    procs = site.spawn_procs(2)
    spawner = procs.slice(gpus=0).spawn("spawner", Player)
    caller = procs.slice(gpus=1).spawn("caller", Player)

    def once(number: int) -> None:
        """One actor spawns, another, of another process, calls too, and the first stops."""
        assert spawner.apply.call_one(spawn_call_stop, procs, caller, number).get(PATIENCE) == [number] * 2

    soak(once, 3_000, 300, growth=6 * MiB)


def spawn_call_stop(procs: Any, caller: Any, number: int) -> list[int]:
    mesh = procs.spawn("inner", Player)
    try:
        assert caller.call_other.call_one(mesh, number).get(PATIENCE) == [number] * 2
        answers: list[int] = mesh.echo.call(number).get(PATIENCE).values()
        return answers
    finally:
        mesh.stop().get(PATIENCE)


def test_processes_that_come_and_go_leave_nothing(site: Any) -> None:
    """The last 1,024 processes that ended are remembered (some 3 KB each), so that late calls learn why."""

    def once(number: int) -> None:
        procs = site.hosts.spawn_procs({"gpus": 4 // site.agents})
        mesh = procs.spawn("player", Player)
        assert mesh.echo.call(number).get(PATIENCE).values() == [number] * 4
        procs.stop().get(PATIENCE)

    soak(once, 200, 20, growth=8 * MiB)


def test_killed_processes_leave_nothing(site: Any) -> None:
    standing = site.spawn_procs(2).spawn("standing", Player)

    def once(number: int) -> None:
        procs = site.hosts.spawn_procs({"gpus": 2 // site.agents})
        mesh = procs.spawn("player", Player)
        pids = mesh.pid.call().get(PATIENCE).values()
        pending = mesh.sleep.stream(PATIENCE)
        for pid in pids:
            os.kill(pid, 9)
        assert all("SIGKILL" in str(future.exception(PATIENCE)) for future in pending)
        procs.stop().get(PATIENCE)
        assert standing.echo.call(number).get(PATIENCE).values() == [number] * 2

    soak(once, 100, 20, growth=8 * MiB)  # exceptions and their frames wait for the collector


def test_a_million_calls_are_answered_in_order(site: Any) -> None:
    echo = site.spawn_procs(2).spawn("player", Player).slice(gpus=1).echo
    process = psutil.Process()
    for number in range(1000):
        echo.call_one(number).get(PATIENCE)
    memory = process.memory_info().rss
    for round_ in range(100):
        futures = [echo.call_one((round_, number)) for number in range(10_000)]
        assert [future.get(PATIENCE) for future in futures] == [(round_, number) for number in range(10_000)]
    assert process.memory_info().rss < memory + 128 * MiB


def test_threads_that_wait_at_the_same_time_each_get_their_own_answers(site: Any) -> None:
    echo = site.spawn_procs(2).spawn("player", Player).slice(gpus=1).echo
    wrong: list[Any] = []

    def ask(me: int) -> None:
        for number in range(20_000):
            answer = echo.call_one((me, number)).get(PATIENCE)
            if answer != (me, number):
                wrong.append((me, number, answer))

    threads = [threading.Thread(target=ask, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not wrong and not any(thread.is_alive() for thread in threads)
