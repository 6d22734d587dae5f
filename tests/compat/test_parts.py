"""Jobs, timeouts, telemetry and addresses by Monarch's names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roost.compat.monarch import jobs, telemetry
from roost.compat.monarch.later import NotOffered, class_, function
from roost.compat.monarch.network import AddrType, get_ipaddr, get_sockaddr
from roost.compat.monarch.timeouts import ThreadTimeout, ThreadTimeoutError
from roost.compat.monarch.workers import native_address


def test_jobs_are_written_down_and_read_without_pickles(tmp_path: Path) -> None:
    job = jobs.ProcessJob({"trainers": 1, "generators": 2}, env={"A": "1"})
    assert not job.active and job.apply_id is None
    job.dump(str(tmp_path / "deep" / "job"))
    again = jobs.job_load(str(tmp_path / "deep" / "job"))
    assert again.can_run(job) and job.can_run(again) and not again.can_run(jobs.LocalJob())
    assert jobs.job_loads(jobs.LocalJob(("a", "b")).dumps()).can_run(jobs.LocalJob(("a", "b")))
    with pytest.raises(ValueError, match="pickled jobs of Monarch are not read"):
        jobs.job_loads(b"\x80\x04N.")


def test_a_job_of_ones_own_says_how(run: Callable[..., Any]) -> None:
    program = """
    from monarch.actor import Actor, context, endpoint, this_host
    from monarch.job import JobState, JobTrait, LocalJob, load_current_job, set_current_job

    class Mine(JobTrait):
        def _create(self, client_script): print("create", client_script)
        def _state(self): return JobState({"here": this_host()})
        def can_run(self, spec): return isinstance(spec, Mine)
        def _kill(self): print("kill")

    class Hello(Actor):
        @endpoint
        def hello(self): return "hello"

    job = Mine()
    print(job.active)
    job.apply()
    job.apply()
    print(job.active, job.state().here.spawn_procs().spawn("h", Hello).hello.call_one().get())
    job.kill()
    print(job.active)
    local = LocalJob(("a", "b"))
    set_current_job("__main__.local")
    print(load_current_job() is local, local.state().b.spawn_procs().spawn("h", Hello).hello.call_one().get())
    """
    assert run(program).out.splitlines() == [
        "False", "create None", "True hello", "kill", "False", "True hello",
    ]  # fmt: skip


def test_a_process_job_gives_its_hosts_an_environment_and_ends_them(run: Callable[..., Any], tmp_path: Path) -> None:
    program = """
    import os
    from monarch.actor import Actor, endpoint
    from monarch.job import ProcessJob

    class Env(Actor):
        @endpoint
        def get(self): return os.environ.get("COLOUR"), os.getppid() != 1

    job = ProcessJob({"hosts": 2}, env={"COLOUR": "blue"})
    with_cache = job.state()
    env = with_cache.hosts.spawn_procs().spawn("env", Env)
    print(env.get.call().get().item(hosts=1))
    job.kill()
    try:
        env.get.call().get(timeout=30)
    except RuntimeError as error:
        print("gone")
    print(job.active, os.path.exists(".monarch"))
    """
    assert run(program, env={"ROOST_FAULT_GRACE": "60"}).out.splitlines() == ["('blue', True)", "gone", "False False"]


def test_a_thread_that_takes_too_long_is_told() -> None:
    with pytest.raises(ThreadTimeoutError), ThreadTimeout(0.01):
        while True:
            threading.get_ident()

    @ThreadTimeout(30.0)
    def quick() -> int:
        return 3

    assert quick() == 3
    begin = time.monotonic()
    with ThreadTimeout(30.0):
        pass
    assert time.monotonic() - begin < 5
    with pytest.raises(ValueError, match="more than 0"):
        ThreadTimeout(0)


def test_telemetry_counts_and_traces_with_nothing_installed() -> None:
    meter = telemetry.get_meter()
    meter.create_counter("steps", unit="1").add(1, {"rank": 0})
    meter.create_histogram("seconds").record(0.5)
    with telemetry.span("step"):
        pass

    @telemetry.traced
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8 and double.__name__ == "double"


def test_addresses_are_those_of_the_system() -> None:
    assert get_ipaddr("127.0.0.1", 80, AddrType.IPv4) == "127.0.0.1"
    assert get_sockaddr("127.0.0.1", 80) == "127.0.0.1:80" and get_sockaddr("::1", 80) == "[::1]:80"
    assert native_address("service<8>@tcp://a:1") == "tcp://a:1"
    assert native_address("tcp://a:1@tcp://b:2") == "tcp://a:1@tcp://b:2"
    assert native_address("ipc:///run/x") == "unix:///run/x"


def test_what_is_not_offered_says_what_to_use() -> None:
    absent: Any = function("remote", "use endpoints")
    for use in (absent, lambda: absent.call(1), absent.__enter__):
        with pytest.raises(NotOffered, match="remote: use endpoints"):
            use()
    assert "use endpoints" in repr(absent)
    with pytest.raises(NotOffered, match="SlurmJob: later"):
        class_("SlurmJob", "later")()
