"""Workers that the kernel kills for want of memory, for real: in a memory cgroup with little of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from troupe import SITE

from roost.actors import Actor, ActorDied, current_rank, endpoint

WAIT = 30.0
"""Seconds: bound of every wait here."""

LIMIT = 96 << 20
GREED = 1 << 30

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """An empty memory cgroup with a limit of 96 MiB, of version 1 or 2; removed afterwards."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if v1 else V2) / f"roost-oom-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"memory cgroups cannot be made here, which takes root and a writable /sys/fs/cgroup: {error}")
    try:
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(LIMIT))
        swap, none = (group / "memory.swappiness", "0") if v1 else (group / "memory.swap.max", "0")
        if swap.exists():
            swap.write_text(none)
    except OSError as error:
        group.rmdir()
        pytest.skip(f"the memory controller is not to be had in cgroups here: {error}")
    yield group
    group.rmdir()


def join_on_rank_1(group: str) -> Any:
    """A bootstrap that puts one rank's process into the cgroup, after its start."""

    def join() -> None:
        if os.environ["RANK"] == "1":
            Path(group, "cgroup.procs").write_text(str(os.getpid()))

    return join


class Hungry(Actor):
    """Takes as much memory as it is told to."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def group(self) -> str:
        return Path("/proc/self/cgroup").read_text()

    @endpoint
    def eat(self, ranks: list[int], nbytes: int) -> int:
        rank = current_rank().rank
        return len(bytearray(b"x") * nbytes) if rank in ranks else rank


def test_an_out_of_memory_kill_is_told_as_such_and_survivors_go_on(small_cgroup: Path, site: Any) -> None:
    mesh = site.spawn_procs(2, bootstrap=join_on_rank_1(str(small_cgroup))).spawn("hungry", Hungry)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    here, there = mesh.group.call().get(timeout=WAIT).values()
    assert small_cgroup.name in there and small_cgroup.name not in here
    first = mesh.slice(gpus=1)
    behind = first.pid.call_one()
    assert behind.get(timeout=WAIT) == pids[1]

    pending = mesh.eat.call([1], GREED)
    queued = [first.pid.call_one() for _ in range(20)]
    with pytest.raises(ActorDied) as told:
        pending.get(timeout=WAIT)
    report = told.value.exit_report
    assert (report.signal, report.pid, told.value.crashed_ranks) == ("SIGKILL", pids[1], (1,))
    assert report.oom is not None and "out-of-memory kill" in report.oom
    assert report.oom in str(told.value), "the evidence stands in what the caller reads"
    assert "was killed by SIGKILL" in str(told.value) and f"pid {pids[1]}" in str(told.value)
    for future in queued:
        with pytest.raises(ActorDied, match="out-of-memory kill"):
            future.get(timeout=WAIT)
    with pytest.raises(ActorDied, match="out-of-memory kill"):  # also who asks later
        first.pid.call_one().get(timeout=WAIT)

    rest = mesh.slice(gpus=0)
    assert rest.eat.call_one([0], 4 << 20).get(timeout=WAIT) == 4 << 20
    fresh = site.spawn_procs(2).spawn("hungry", Hungry)
    assert len(set(fresh.pid.call().get(timeout=WAIT).values())) == 2
    assert not (small_cgroup / "cgroup.procs").read_text(), "nobody is left in it"


def test_a_kill_by_hand_in_the_same_cgroup_is_not_called_out_of_memory(small_cgroup: Path, site: Any) -> None:
    mesh = site.spawn_procs(2, bootstrap=join_on_rank_1(str(small_cgroup))).spawn("hungry", Hungry)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    pending = mesh.slice(gpus=1).pid.call_one()
    assert pending.get(timeout=WAIT) == pids[1]
    os.kill(pids[1], 9)
    with pytest.raises(ActorDied) as told:
        mesh.slice(gpus=1).pid.call_one().get(timeout=WAIT)
    assert told.value.exit_report.signal == "SIGKILL" and told.value.exit_report.oom is None


WITHOUT_KERNEL_LOG = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, BIND, PRIVATE_ALL = 0x20000, 0x1000, 0x44000
for error in (libc.unshare(NEW_MOUNTS), libc.mount(b"none", b"/", None, PRIVATE_ALL, None),
              libc.mount(b"/dev/null", b"/dev/kmsg", None, BIND, None)):
    assert error == 0, ctypes.get_errno()
"""


def test_without_a_kernel_log_the_counter_of_the_cgroup_is_the_evidence(
    small_cgroup: Path, site: Any, run_script: Any
) -> None:
    """The worker joins the cgroup after its start and dies before anybody looks around."""
    source = (
        WITHOUT_KERNEL_LOG
        + SITE
        + """
from roost.actors import ActorDied
from test_oom import GREED, Hungry, join_on_rank_1
if sys.argv[1] == "one agent":
    procs = hosts.spawn_procs({"gpus": 2}, bootstrap=join_on_rank_1(sys.argv[2]))
else:
    procs = hosts.spawn_procs({"gpus": 1}, bootstrap=join_on_rank_1(sys.argv[2])).flatten("gpus")
try:
    procs.spawn("hungry", Hungry).eat.call([1], GREED).get(timeout=30)
except ActorDied as error:
    print(error.exit_report.oom)
"""
    )
    said = run_script(source, site.name, small_cgroup).out
    assert f"an out-of-memory kill in its cgroup /{small_cgroup.name} at the time" in said
