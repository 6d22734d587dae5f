"""The pure parts of the launcher: the report and its evidence, output files, keys, owners of orphans."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import msgpack
import pytest

from roost.mesh.launch import ExitReport, ProcSpec, output, report, spec, zygote, zygote_key
from roost.mesh.launch.evidence import Evidence, KernelLog, counters, kills_in
from roost.mesh.launch.orphans import owners_of
from roost.mesh.launch.plan import WorkerPlan


def make(**changes: object) -> ExitReport:
    values: dict[str, object] = {
        "proc_id": 1 << 62,
        "name": "trainer-3",
        "pid": 123,
        "host": "hostX",
        "node_id": "n1",
        "code": None,
        "signal": "SIGKILL",
        "core_dumped": False,
        "oom": None,
        "gpu_fault": None,
        "stderr_tail": ("one", "two"),
        "output": "/run/3.out",
        "uptime_s": 12.34,
    }
    return ExitReport(**(values | changes))


@pytest.mark.parametrize("module", [report, spec, output])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "was killed by SIGKILL after 12.3 s"),
        ({"requested": True}, "was stopped on request by SIGKILL after 12.3 s"),
        ({"signal": "SIGSEGV", "core_dumped": True}, "was killed by SIGSEGV with a core dump after 12.3 s"),
        ({"signal": None, "code": 3}, "ended with exit code 3 after 12.3 s"),
        ({"oom": "the kernel reports X"}, "was killed by SIGKILL after 12.3 s; the kernel reports X"),
        ({"signal": None, "note": "why"}, "is gone, its exit status unknown, after 12.3 s; why"),
        ({"signal": "SIGABRT", "gpu_fault": "Xid 31"}, "was killed by SIGABRT after 12.3 s; Xid 31"),
    ],
)
def test_a_report_says_who_how_and_why_in_one_line(changes: dict[str, object], sentence: str) -> None:
    assert make(**changes).sentence() == f"worker trainer-3 (pid 123 on hostX) {sentence}"


def test_a_report_survives_the_wire() -> None:
    sent = make(oom="x", requested=True, node_id=None)
    assert ExitReport.from_wire(msgpack.unpackb(msgpack.packb(sent.to_wire()))) == sent
    with pytest.raises(ValueError, match="15 fields, got 1"):
        ExitReport.from_wire([1])
    with pytest.raises(ValueError, match="list of lines"):
        ExitReport.from_wire([None] * len(sent.to_wire()))


def test_a_plan_survives_the_wire() -> None:
    plan = WorkerPlan(1, "w", "m:f", b"\0p", "/o", 9, {"A": None, "B": "1"}, (0, 2), None, ("/s",), ("nice",))
    assert WorkerPlan.unpack(plan.pack()) == plan


# --- evidence


class Machine:
    """Files, a kernel log and a clock, all of the test's making."""

    def __init__(self, **files: str) -> None:
        self.files = {path.replace("__", "/"): text for path, text in files.items()}
        self.log: list[str] = []
        self.now = 0.0

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def lines(self) -> tuple[str, ...]:
        return tuple(self.log)

    def close(self) -> None: ...

    def evidence(self) -> Evidence:
        return Evidence(self.read, self, lambda: self.now)


def machine_v2() -> Machine:
    machine = Machine()
    machine.files = {
        "/proc/5/cgroup": "0::/job/step\n",
        "/proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup rw\n",
        "/sys/fs/cgroup/job/step/memory.events": "low 0\noom 9\noom_kill 2\noom_group_kill 0\n",
        "/proc/vmstat": "nr_free_pages 12\noom_kill 7\n",
    }
    return machine


def test_a_rise_of_the_cgroup_v2_counter_is_evidence() -> None:
    machine = machine_v2()
    evidence = machine.evidence()
    evidence.follow([5])
    assert evidence.out_of_memory(5, "trainer-3") is None
    machine.files["/sys/fs/cgroup/job/step/memory.events"] = "oom_kill 3\n"
    assert evidence.out_of_memory(5, "trainer-3") == (
        "the kernel counted an out-of-memory kill in its cgroup /job/step at the time "
        "(/sys/fs/cgroup/job/step/memory.events)"
    )


def test_a_rise_long_ago_is_no_evidence() -> None:
    machine = machine_v2()
    evidence = machine.evidence()
    evidence.follow([5])
    machine.files["/sys/fs/cgroup/job/step/memory.events"] = "oom_kill 4\n"
    machine.files["/proc/vmstat"] = "oom_kill 9\n"
    for second in range(1, 40):
        machine.now = float(second)
        evidence.follow([5])
        found = evidence.out_of_memory(5, "") is not None
        assert found == (second < 16)


def test_the_hosts_counter_is_the_weakest_witness() -> None:
    machine = machine_v2()
    del machine.files["/sys/fs/cgroup/job/step/memory.events"]
    evidence = machine.evidence()
    evidence.follow([5])
    machine.files["/proc/vmstat"] = "oom_kill 9\n"
    assert evidence.out_of_memory(5, "") == (
        "the kernel counted 2 out-of-memory kills on this host at the time (/proc/vmstat)"
    )
    evidence.forget(5)
    assert evidence.out_of_memory(5, "") is None


def test_the_v1_counter_is_found_also_below_a_mount_of_a_part_of_the_hierarchy() -> None:
    machine = Machine()
    machine.files = {
        "/proc/self/mountinfo": (
            "1 0 0:1 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "2 0 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        ),
        "/sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    }
    found = counters("5:cpu:/\n4:memory:/docker/ab/job\n0::/\n", machine.read)
    assert [counter.path for counter in found] == [
        "/sys/fs/cgroup/memory/job/memory.oom_control",
        "/proc/vmstat",
    ]
    assert kills_in(machine.read(found[0].path)) == 1
    assert kills_in(None) is None
    assert kills_in("oom_kill_disable 0\n") is None


def test_the_kernel_log_names_the_victim_by_pid_and_name() -> None:
    machine = Machine()
    line = "Memory cgroup out of memory: Killed process 5 (trainer-3) total-vm:27kB, anon-rss:9kB"
    machine.log = [line, "Out of memory: Killed process 6 (python) total-vm:1kB"]
    evidence = machine.evidence()
    assert evidence.out_of_memory(5, "trainer-3") == f"the kernel reports an out-of-memory kill: {line}"
    assert evidence.out_of_memory(6, "trainer-4") is None  # a pid of another pid namespace
    assert evidence.out_of_memory(7, "python") is None


def test_gpu_faults_come_from_the_kernel_log_or_the_workers_own_words() -> None:
    machine = Machine()
    machine.log = ["NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=python, Ch 00000008", "usb 1-1: pid 6"]
    evidence = machine.evidence()
    assert evidence.gpu_fault(5, ()) == f"the kernel reports a GPU fault: {machine.log[0]}"
    assert evidence.gpu_fault(6, ("fine",)) is None
    tail = ("RuntimeError: CUDA error: an illegal memory access was encountered", "at step 3")
    assert evidence.gpu_fault(6, tail) == f"it reported a GPU fault: {tail[0]}"


def test_a_kernel_log_that_cannot_be_read_is_silent(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert log.lines() == ()
    log.close()


def test_a_kernel_log_gives_what_came_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;old\n")
    log = KernelLog(str(path))
    with path.open("a") as file:
        file.write("6,2,2,-;new line\n SUBSYSTEM=x\n")
    assert log.lines() == ("new line",)
    log.close()


# --- output files


def test_the_tail_begins_where_this_worker_began_and_skips_holes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before\n" + b"\0" * 4096 + b"cut line\nlast\n\n" + b"x" * 900)
    assert output.tail_lines(str(path), 3) == ("cut line", "last", "x" * 500)
    assert output.tail_lines(str(path), 20, start=path.stat().st_size - 900) == ("x" * 500,)
    assert output.tail_lines(str(tmp_path / "none"), 3) == ()


def test_a_file_over_its_limit_keeps_head_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "out"
    data = b"".join(b"%07d\n" % i for i in range(100_000))
    path.write_bytes(data)
    assert output.enforce_limit(str(path), 64 << 10)
    kept = path.read_bytes()
    assert len(kept) == len(data)
    assert kept[: 16 << 10] == data[: 16 << 10]
    assert kept[-(32 << 10) :] == data[-(32 << 10) :]
    assert path.stat().st_blocks * 512 <= 64 << 10
    assert not output.enforce_limit(str(path), 64 << 10)


def test_where_no_hole_can_be_punched_the_tail_moves_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "punch_hole", lambda fd, offset, length: False)
    path = tmp_path / "out"
    writer = output.open_append(str(path))
    os.write(writer, b"a" * 100_000 + b"b" * 100)
    assert output.enforce_limit(str(path), 64 << 10)
    os.write(writer, b"after")
    os.close(writer)
    assert path.read_bytes() == b"after"
    assert (tmp_path / "out.1").read_bytes() == b"a" * ((32 << 10) - 100) + b"b" * 100


def test_a_missing_file_or_one_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    assert not output.enforce_limit(str(tmp_path / "none"), 1)
    assert output.create(str(tmp_path / "deep" / "out")) == 0
    assert not output.enforce_limit(str(tmp_path / "deep" / "out"), 1)


# --- keys, owners, fitness


def test_thread_variables_and_ranks_do_not_choose_the_zygote() -> None:
    one = ProcSpec(1, "a", "m:f", b"", "/o", env={"B": "1", "A": None, "OMP_NUM_THREADS": "4"})
    two = ProcSpec(2, "b", "m:g", b"x", "/p", env={"A": None, "B": "1"}, rank_env={"RANK": "1"}, cpus="0")
    assert zygote_key(one) == zygote_key(two)
    assert zygote_key(one) != zygote_key(ProcSpec(1, "a", "m:f", b"", "/o", env={"B": "1"}))


@pytest.mark.parametrize(
    ("session", "marked", "just_died", "owners"),
    [
        (50, 2, (3,), {1}),  # in the session of worker 1
        (60, 2, (3,), {2}),  # exec'd by worker 2
        (60, None, (3,), {3}),  # came up as worker 3 died
        (60, None, (), {1, 2}),  # detached itself: whose it is nobody knows
    ],
)
def test_the_owners_of_a_stray(session: int, marked: int | None, just_died: tuple[int, ...], owners: set[int]) -> None:
    assert owners_of(session, marked, {50: 1}, (1, 2), just_died) == owners


def test_a_process_with_an_accelerator_open_must_not_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote.os, "listdir", lambda path: ["4"])
    monkeypatch.setattr(zygote.os, "readlink", lambda path: "/dev/nvidia0")
    assert zygote.unfit_to_fork() == "it opened /dev/nvidia0"
    monkeypatch.setattr(zygote.os, "readlink", lambda path: "/dev/kfd")
    assert zygote.unfit_to_fork() == "it opened /dev/kfd"
    monkeypatch.setattr(zygote.os, "readlink", lambda path: "/dev/null")
    assert zygote.unfit_to_fork() is None
