"""The command line on jobs that run, that are stuck, and that have ended, each command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 30.0

JOB = """
import sys
from roost import ProcessJob, this_host
from test_output import Speaker, Sleeper
hosts = this_host() if sys.argv[1] == "one agent" else ProcessJob({"h": 2}).state().h
per_host = 2 if sys.argv[1] == "one agent" else 1
procs = hosts.spawn_procs({"gpus": per_host}, name="trainer").flatten("gpus")
speakers = procs.spawn("speaker", Speaker)
speakers.say.call("hello", "step 1 loss=0.5", "step 2 loss=0.25").get()
sleepers = procs.spawn("sleeper", Sleeper)
from roost.actors import Channel
port, receiver = Channel.open()
stuck = sleepers.slice(gpus=1).stand.call_one(sys.argv[2], port)
receiver.recv().get()
from roost.mesh.local import controller
print("UP", *(agent.process.pid for agent in controller().agents), *speakers.pid.call().get().values())
for line in sys.stdin:
    speakers.say.call(line.strip()).get()
"""


class Command:
    """`roost ARGS` as a user runs it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def popen(self, *args: str) -> subprocess.Popen[str]:
        """A command that runs on."""
        return subprocess.Popen(
            [sys.executable, "-m", "roost.controller.cli", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
        )

    def __call__(self, *args: str, code: int = 0) -> str:
        """Its standard output; of one that fails its standard error."""
        process = self.popen(*args)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out if code == 0 else err + out


class Running:
    """A job that runs."""

    def __init__(self, script: Any, agents: int) -> None:
        while not (line := script.line()).startswith("UP"):
            pass
        pids = [int(word) for word in line.split()[1:]]
        self.script = script
        self.job = str(script.pid)
        self.agents, self.workers = pids[:agents], pids[agents:]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the run directories of a test are made; nothing else is looked at."""
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    yield made


@pytest.fixture
def roost(folder: Path) -> Command:
    """The command, which sees the test's own jobs alone."""
    return Command({**os.environ, "ROOST_RUN_DIR": str(folder), "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)})


@pytest.fixture(params=["one agent", "two agents"])
def job(request: pytest.FixtureRequest, start_script: Callable[..., Any], barrier: Any, folder: Path) -> Running:
    """A job of two workers, of which one is stuck in an endpoint."""
    script = start_script(JOB, request.param, barrier.path, env={"ROOST_RUN_DIR": str(folder)})
    return Running(script, 1 if request.param == "one agent" else 3)


def _processes(found: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((p for host in found["hosts"] for p in host["processes"]), key=lambda p: int(p["rank"]))


def test_ps_tells_of_programs_hosts_processes_and_what_their_actors_do(job: Running, roost: Command) -> None:
    (found,) = json.loads(roost("ps", "--json"))
    assert (found["pid"], found["alive"]) == (job.script.pid, True)
    assert found["command"].endswith(".py " + found["command"].split(".py ")[1])
    assert sorted(host["agent_pid"] for host in found["hosts"]) == sorted(job.agents)
    processes = _processes(found)
    assert [(p["name"], p["pid"]) for p in processes] == [
        (f"trainer-{rank}", pid) for rank, pid in enumerate(job.workers)
    ]
    assert all(p["rss"] > 1 << 20 for p in processes)
    running = [{actor["name"]: actor["running"] for actor in p["actors"]} for p in processes]
    assert running == [{"speaker": [], "sleeper": []}, {"speaker": [], "sleeper": ["stand"]}]
    text = roost("ps", job.job)
    assert "sleeper[1] (runs stand)" in text and f"pid {job.script.pid}" in text


def test_ps_of_a_stopped_agent_says_so_and_shows_what_files_and_proc_tell(job: Running, roost: Command) -> None:
    for pid in job.agents:
        os.kill(pid, signal.SIGSTOP)
    try:
        (found,) = json.loads(roost("ps", "--json"))
        assert {host["silence"] for host in found["hosts"]} == {"it is stopped"}
        assert [p["pid"] for p in _processes(found)] == job.workers
        assert [p["actors"] for p in _processes(found)] == [None, None]
        assert "stop_at(barrier)" in roost("stacks", job.job, "-r", "1")
        assert "[trainer-0] hello" in roost("logs", job.job)
    finally:
        for pid in job.agents:
            os.kill(pid, signal.SIGCONT)


def test_logs_are_chosen_by_rank_name_count_and_pattern(job: Running, roost: Command) -> None:
    both = [
        f"[trainer-{rank}] {line}" for rank in range(2) for line in ("hello", "step 1 loss=0.5", "step 2 loss=0.25")
    ]
    assert roost("logs", job.job).splitlines() == both
    assert roost("logs", "--rank", "1", "--grep", "loss=", "-n", "1").splitlines() == ["[trainer-1] step 2 loss=0.25"]
    assert roost("logs", "--name", "trainer", "-r", "0-1", "-n", "1").splitlines() == [both[2], both[5]]
    assert "no process that is meant" in roost("logs", "--name", "nobody", code=1)


def test_logs_follow_until_the_job_ends(job: Running, roost: Command, barrier: Any) -> None:
    process = roost.popen("logs", job.job, "-f", "-n", "1", "-r", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == "[trainer-1] step 2 loss=0.25\n"
    job.script.say("written later")
    assert process.stdout.readline() == "[trainer-1] written later\n"
    barrier.open(2)
    job.script.wait()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


def test_logs_follow_until_a_job_whose_program_lives_on_is_over(
    start_script: Callable[..., Any], roost: Command, folder: Path
) -> None:
    source = """
        import sys
        from roost import shutdown, this_host
        from test_output import Speaker
        speakers = this_host().spawn_procs(name="trainer").spawn("speaker", Speaker)
        speakers.say.call("hello").get()
        print("UP")
        sys.stdin.readline()
        shutdown()
        sys.stdin.readline()
    """
    script = start_script(source, env={"ROOST_RUN_DIR": str(folder)})
    while script.line() != "UP":
        pass
    process = roost.popen("logs", str(script.pid), "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "[trainer-0] hello\n"
    script.say()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")
    assert script.process.poll() is None
    script.say()
    assert script.wait() == 0


def test_stacks_show_where_a_process_is_stuck(job: Running, roost: Command) -> None:
    text = roost("stacks", job.job)
    assert f"trainer-0 (pid {job.workers[0]}" in text and f"trainer-1 (pid {job.workers[1]}" in text
    assert "actor sleeper[1]" in text and "runs stand" in text and "stop_at(barrier)" in text
    assert "trainer-0" not in roost("stacks", "-r", "1")


def test_clean_ends_a_running_job_only_when_told_so(
    job: Running, roost: Command, folder: Path, wait_until_gone: Callable[..., None]
) -> None:
    assert roost("clean") == "nothing to clean\n"
    assert "-y ends it" in roost("clean", job.job, code=1)
    assert roost("ps", job.job)
    assert "was ended, and is removed" in roost("clean", job.job, "-y")
    wait_until_gone([*job.agents, *job.workers])
    assert list(folder.iterdir()) == []
    assert "no jobs of yours" in roost("ps", code=1)


def test_clean_removes_what_killed_programs_and_agents_have_left(
    job: Running, roost: Command, folder: Path, wait_until_gone: Callable[..., None]
) -> None:
    for pid in job.agents:
        os.kill(pid, signal.SIGKILL)
    job.script.signal(signal.SIGKILL)
    wait_until_gone([*job.agents, *job.workers])
    job.script.wait()
    assert len(list(folder.iterdir())) == len(job.agents)
    assert "has ended" in roost("ps", "--all")
    assert "had ended, and is removed" in roost("clean")
    assert list(folder.iterdir()) == []


def test_clean_ends_agents_whose_program_is_gone(
    job: Running, roost: Command, folder: Path, wait_until_gone: Callable[..., None]
) -> None:
    agents = [os.pidfd_open(pid) for pid in job.agents]
    try:
        for agent in agents:  # stopped, an agent cannot follow its program
            signal.pidfd_send_signal(agent, signal.SIGSTOP)
        job.script.signal(signal.SIGKILL)
        wait_until_gone([job.script.pid])
        roost("clean", "--stale")
        wait_until_gone([*job.agents, *job.workers])
        assert list(folder.iterdir()) == []
    finally:
        for agent in agents:  # of a test that has failed they would stay for ever
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(agent, signal.SIGKILL)
            os.close(agent)


def test_what_is_no_run_directory_of_this_machine_is_left_alone(roost: Command, folder: Path) -> None:
    place = {"place": ["another-boot 1", 1, 1], "host": "elsewhere", "argv": ["x"], "started": 0.0}
    for name, mode, card in (("roost-far", 0o700, place), ("roost-open", 0o755, {**place, "place": ["", 1, 1]})):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
        (folder / name / "job.json").write_text(json.dumps(card))
    (folder / "roost-models").mkdir(mode=0o700)
    assert roost("clean", "--all", "-y") == "nothing to clean\n"
    assert sorted(path.name for path in folder.iterdir()) == ["roost-far", "roost-models", "roost-open"]


def test_the_secret_of_a_job_is_its_users_alone(job: Running, folder: Path) -> None:
    secrets = list(folder.glob("roost-*/secret"))
    assert len(secrets) == len(job.agents)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in secrets)


TIMES = [["stacks", "--timeout", time] for time in ("-1", "0", "nan", "inf", "soon")]


@pytest.mark.parametrize("args", [[], ["frobnicate"], ["logs", "-r", "3-1"], ["logs", "--grep", "("], *TIMES])
def test_wrong_arguments_are_told_in_a_sentence(args: list[str], roost: Command) -> None:
    assert "usage:" in roost(*args, code=2)


@pytest.mark.parametrize("command", ["logs", "stacks"])
def test_a_job_that_is_not_there_is_told_in_a_sentence(command: str, roost: Command) -> None:
    assert roost(command, "nothere", code=1).startswith(f"roost {command}: no job of yours is named 'nothere'")


def test_the_command_starts_without_what_it_does_not_need(roost: Command) -> None:
    assert roost("version").startswith("roost 0.")
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from roost.controller.cli import main; main(['version']); "
            "assert not {'asyncio', 'torch', 'numpy', 'msgpack'} & set(sys.modules)",
        ],
        check=True,
        timeout=PATIENCE,
    )


def test_places_are_read_as_they_are_written() -> None:
    from roost.controller.cli.processes import at, is_here
    from roost.mesh.place import here

    assert is_here(here())
    found = at(here())
    assert found is not None and found.pid == os.getpid()
