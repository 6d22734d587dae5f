"""Worker loops: hosts that are there before a program and stay after it, and what ends with whom."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from guests import LOOP, LOOP_UNTIL_SHUTDOWN, PROGRAM, Guest, Wire

from roost.actors import ActorDied, ActorStopped, RoostError, Unreachable
from roost.mesh import AttachError, attach, attach_to_workers, shutdown, start_worker_loop_forever, this_host
from roost.mesh.secret import resolve_secret, secret_file

WAIT = 20.0

ATTACHED_AND_WAITING = """
import sys
from guests import Guest
from roost.mesh import attach_to_workers
hosts = attach_to_workers(sys.argv[1:], timeout=20)
guests = hosts.spawn_procs({"gpus": 2}).spawn("guest", Guest)
print(*guests.pid.call().get(timeout=20).values())
sys.stdin.readline()
try:
    print(guests.add.call().get(timeout=20).values())
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops and programs of a test share a secret that no other has."""
    monkeypatch.setenv("ROOST_SECRET_FILE", str(tmp_path / "secret"))


@pytest.fixture(autouse=True)
def ended_with_the_test() -> Iterator[None]:
    """Each test is a program of its own."""
    yield
    shutdown()


Loop = Callable[..., Any]


@pytest.fixture
def loop(start_script: Any, wait_until_gone: Any) -> Iterator[Loop]:
    """`loop(address="tcp://127.0.0.1:0", source=LOOP, env={})`: a worker loop's script; `.address` is what it printed,
    `.agent` its agent."""
    started = []

    def start(address: str = "tcp://127.0.0.1:0", source: str = LOOP, env: dict[str, str] | None = None) -> Any:
        script = start_script(source, address, env=env)
        script.address = script.line()
        (script.agent,) = psutil.Process(script.pid).children()
        started.append(script)
        return script

    yield start
    for script in started:
        if script.process.poll() is None:
            script.signal(signal.SIGTERM)
        script.process.wait(WAIT)
    wait_until_gone(script.agent.pid for script in started)


def pids(line: str) -> list[int]:
    return [int(word) for word in line.split()]


# --- programs come and go


def test_a_program_spawns_on_a_loop_and_what_it_spawned_ends_with_it(
    loop: Loop, run_script: Any, wait_until_gone: Any
) -> None:
    host = loop()
    first = pids(run_script(PROGRAM, host.address).out)
    wait_until_gone(first)
    second = pids(run_script(PROGRAM, host.address).out)
    assert len(set(first + second)) == 4
    wait_until_gone(second)
    assert host.agent.is_running()


def test_programs_attached_at_once_do_not_end_each_others_processes(
    loop: Loop, start_script: Any, wait_until_gone: Any
) -> None:
    host = loop()
    one, two = (start_script(ATTACHED_AND_WAITING, host.address) for _ in range(2))
    of_one, of_two = pids(one.line()), pids(two.line())
    one.say()
    assert one.wait() == 0
    wait_until_gone(of_one)
    assert all(psutil.pid_exists(pid) for pid in of_two)
    two.say()
    assert two.line() == "[1, 1]"


def test_a_killed_programs_processes_end_at_once(loop: Loop, start_script: Any, wait_until_gone: Any) -> None:
    host = loop()
    program = start_script(ATTACHED_AND_WAITING, host.address)
    spawned = pids(program.line())
    program.signal(signal.SIGKILL)
    wait_until_gone(spawned, timeout=5)  # no link timeout of 30 s
    assert host.agent.is_running()


def test_what_a_killed_program_had_still_to_start_is_never_started(
    loop: Loop, start_script: Any, wait_until_gone: Any, tmp_path: Path
) -> None:
    source = """
        import os, sys
        from roost.mesh import attach_to_workers

        def start(path):
            with open(path, "wb", buffering=0) as file:
                file.write(b"%d\\n" % os.getpid())

        path = sys.argv[1]
        hosts = attach_to_workers(sys.argv[2:], timeout=20)
        spawned = [hosts.spawn_procs({"gpus": 3}, bootstrap=lambda: start(path)) for _ in range(100)]
        sys.stdin.readline()
    """
    host = loop()
    os.mkfifo(tmp_path / "pids")
    with open(os.open(tmp_path / "pids", os.O_RDWR), "rb", buffering=0) as lines:
        program = start_script(source, tmp_path / "pids", host.address)
        started = lines.read(4096)  # the first has run
        program.signal(signal.SIGKILL)
        guests = attach_to_workers([host.address], timeout=WAIT).spawn_procs().spawn("guest", Guest)
        assert guests.add.call().get(timeout=WAIT).values() == [1]  # it stood behind them
        os.set_blocking(lines.fileno(), False)
        started += lines.read(65536) or b""
    assert started.count(b"\n") < 200
    wait_until_gone(map(int, started.split()), timeout=10)


def test_what_an_actor_spawned_on_a_loop_ends_with_the_program_too(
    loop: Loop, start_script: Any, wait_until_gone: Any
) -> None:
    source = """
        import sys
        from guests import Guest
        from roost.mesh import attach_to_workers, this_host
        hosts = attach_to_workers(sys.argv[1:], timeout=20)
        here = this_host().spawn_procs().spawn("guest", Guest)
        there = hosts.slice(hosts=0).spawn_procs().spawn("guest", Guest)
        print(*here.lodge.call_one(hosts).get(timeout=20), *there.lodge.call_one(hosts).get(timeout=20))
        sys.stdin.readline()
    """
    addresses = [loop().address, loop().address]
    for end in ("cleanly", "killed"):
        program = start_script(source, *addresses)
        spawned = pids(program.line())
        assert len(spawned) == 4
        if end == "cleanly":
            program.say()
            assert program.wait() == 0
        else:
            program.signal(signal.SIGKILL)
        wait_until_gone(spawned, timeout=10)


def test_a_program_that_is_cut_off_loses_its_processes_after_the_link_timeout(
    loop: Loop, start_script: Any, wait_until_gone: Any
) -> None:
    wire = Wire()
    quick = {"ROOST_LINK_TIMEOUT": "1"}
    host = loop(f"tcp://127.0.0.1:{wire.port}@tcp://127.0.0.1:0", env=quick)
    assert host.address == f"tcp://127.0.0.1:{wire.port}"
    (bound,) = (c.laddr.port for c in host.agent.net_connections() if c.status == psutil.CONN_LISTEN and c.laddr)
    wire.lead_to(bound)
    program = start_script(ATTACHED_AND_WAITING, host.address, env=quick)
    spawned = pids(program.line())
    wire.cut(for_good=True)
    wait_until_gone(spawned, timeout=10)
    program.say()
    assert program.line() == "Unreachable"
    assert program.wait() == 0
    assert host.agent.is_running()
    wire.close()


def test_a_link_that_is_cut_for_a_moment_costs_nothing(loop: Loop, start_script: Any) -> None:
    wire = Wire()
    host = loop(f"tcp://127.0.0.1:{wire.port}@tcp://127.0.0.1:0")
    (bound,) = (c.laddr.port for c in host.agent.net_connections() if c.status == psutil.CONN_LISTEN and c.laddr)
    wire.lead_to(bound)
    program = start_script(ATTACHED_AND_WAITING, host.address)
    spawned = pids(program.line())
    for _ in range(3):
        wire.cut()
    program.say()
    assert program.line() == "[1, 1]"
    assert len(spawned) == 2
    assert program.wait() == 0
    wire.close()


# --- hosts


def test_hosts_stand_in_the_order_given_and_their_actors_reach_each_other(loop: Loop) -> None:
    here = this_host().spawn_procs({"gpus": 2}).spawn("here", Guest)  # the program has a secret of its own by now
    here.add.call().get(timeout=WAIT)
    one, two = loop(), loop()
    hosts = attach_to_workers([two.address, one.address], timeout=WAIT)
    assert hosts.extent.labels == ("hosts",)
    there = hosts.spawn_procs({"gpus": 2}).spawn("there", Guest)
    parents = [psutil.Process(pid).ppid() for pid in there.pid.call().get(timeout=WAIT).values()]
    assert parents == [two.agent.pid, two.agent.pid, one.agent.pid, one.agent.pid]
    assert there.slice(hosts=0, gpus=0).ask.call_one(there.slice(hosts=1)).get(timeout=WAIT) == [1, 1]
    assert here.slice(gpus=0).ask.call_one(there).get(timeout=WAIT) == [1, 1, 2, 2]
    assert there.slice(hosts=1, gpus=1).ask.call_one(here).get(timeout=WAIT) == [2, 2]


def test_the_same_worker_is_attached_twice(loop: Loop) -> None:
    host = loop()
    first = attach_to_workers([host.address], timeout=WAIT).spawn_procs().spawn("guest", Guest)
    assert first.add.call().get(timeout=WAIT).values() == [1]
    second = attach_to_workers([host.address], timeout=WAIT).spawn_procs().spawn("guest", Guest)
    assert second.add.call().get(timeout=WAIT).values() == [1]
    assert first.add.call().get(timeout=WAIT).values() == [2]


def test_stop_ends_what_was_spawned_and_the_hosts_can_be_used_again(loop: Loop, wait_until_gone: Any) -> None:
    host = loop()
    with attach_to_workers([host.address], timeout=WAIT) as hosts:
        guests = hosts.spawn_procs({"gpus": 2}).spawn("guest", Guest)
        spawned = guests.pid.call().get(timeout=WAIT).values()
    wait_until_gone(spawned)
    again = hosts.spawn_procs().spawn("guest", Guest)
    assert again.add.call().get(timeout=WAIT).values() == [1]
    assert host.agent.is_running()


def test_shutdown_ends_the_loops(loop: Loop, wait_until_gone: Any) -> None:
    forever, until = loop(), loop(source=LOOP_UNTIL_SHUTDOWN)
    hosts = attach_to_workers([forever.address, until.address], timeout=WAIT)
    guests = hosts.spawn_procs().spawn("guest", Guest)
    spawned = guests.pid.call().get(timeout=WAIT).values()
    hosts.shutdown().get(timeout=WAIT)
    assert forever.wait() == 0
    assert until.wait() == 0
    assert until.out.splitlines()[-1] == "returned"
    wait_until_gone(spawned)
    with pytest.raises(ActorStopped):
        guests.add.call().get(timeout=WAIT)
    with pytest.raises(ActorStopped):
        hosts.spawn_procs()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_a_loop_with_everything_under_it(
    loop: Loop, wait_until_gone: Any, number: int, code: int
) -> None:
    host = loop()
    guests = attach_to_workers([host.address], timeout=WAIT).spawn_procs({"gpus": 2}).spawn("guest", Guest)
    spawned = guests.pid.call().get(timeout=WAIT).values()
    host.signal(number)
    assert host.wait() == code
    wait_until_gone([host.agent.pid, *spawned])
    with pytest.raises(ActorStopped, match="shut down"):
        guests.add.call().get(timeout=WAIT)


def test_a_killed_loop_takes_everything_with_it(
    loop: Loop, wait_until_gone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.actors.unhandled_fault_hook", lambda failure: None)
    host = loop()
    guests = attach_to_workers([host.address], timeout=WAIT).spawn_procs({"gpus": 2}).spawn("guest", Guest)
    spawned = guests.pid.call().get(timeout=WAIT).values()
    host.signal(signal.SIGKILL)
    wait_until_gone([host.agent.pid, *spawned])
    with pytest.raises(ActorDied, match=rf"\(pid {host.pid}\) has died"):
        guests.add.call().get(timeout=WAIT)


def test_a_killed_agent_fails_calls_at_once_and_its_loop_says_so(
    loop: Loop, wait_until_gone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.actors.unhandled_fault_hook", lambda failure: None)
    host = loop()
    guests = attach_to_workers([host.address], timeout=WAIT).spawn_procs({"gpus": 2}).spawn("guest", Guest)
    spawned = guests.pid.call().get(timeout=WAIT).values()
    host.agent.send_signal(signal.SIGKILL)
    with pytest.raises(ActorDied, match=host.address):
        guests.add.call().get(timeout=WAIT)
    assert host.wait() == 1
    assert "killed by SIGKILL" in host.err
    wait_until_gone(spawned)


def test_a_loop_beside_other_work_ends_when_its_future_is_cancelled() -> None:
    addresses: list[str] = []
    ended = start_worker_loop_forever("tcp://127.0.0.1:0", on_ready=addresses.append)
    guests = attach_to_workers(addresses, timeout=WAIT).spawn_procs().spawn("guest", Guest)
    assert guests.add.call().get(timeout=WAIT).values() == [1]
    assert not ended.done()
    ended.cancel()
    with pytest.raises(ActorStopped):
        guests.add.call().get(timeout=WAIT)


def test_a_unix_address_works_and_one_left_by_a_killed_loop_is_taken_over(
    loop: Loop, tmp_path: Path, wait_until_gone: Any
) -> None:
    address = f"unix://{tmp_path}/loop.sock"
    first = loop(address)
    first.agent.send_signal(signal.SIGKILL)
    assert first.wait() == 1
    second = loop(address)
    assert second.address == address
    guests = attach_to_workers([address], timeout=WAIT).spawn_procs().spawn("guest", Guest)
    assert guests.add.call().get(timeout=WAIT).values() == [1]


def test_an_address_that_is_taken_is_told_in_a_sentence(loop: Loop, run_script: Any) -> None:
    host = loop()
    failed = run_script(LOOP, host.address, code=1)
    assert f"cannot listen at {host.address}: address already in use" in failed.err.splitlines()[-1].lower()


def test_only_the_interface_given_is_bound(loop: Loop) -> None:
    host = loop("tcp://127.0.0.2:0")
    listening = [c.laddr.ip for c in host.agent.net_connections() if c.status == psutil.CONN_LISTEN and c.laddr]
    assert listening == ["127.0.0.2"]


def test_futures_of_addresses_are_waited_for(loop: Loop) -> None:
    from roost.actors import Future

    address: Future[str] = Future()
    hosts = attach_to_workers([address], timeout=WAIT)
    assert not hosts.initialized.done()
    address.set_result(loop().address)
    assert hosts.spawn_procs().spawn("guest", Guest).add.call().get(timeout=WAIT).values() == [1]


# --- a gateway


def test_a_program_reaches_hosts_through_a_gateway_alone(loop: Loop, start_script: Any, wait_until_gone: Any) -> None:
    source = """
        import sys
        from guests import Guest
        from roost.mesh import attach, attach_to_workers, this_host
        attach(sys.argv[1])
        attach(sys.argv[1])
        here = this_host().spawn_procs().spawn("guest", Guest)
        guests = attach_to_workers(sys.argv[2:], timeout=20).spawn_procs({"gpus": 1}).spawn("guest", Guest)
        print(*guests.pid.call().get(timeout=20).values())
        print(here.ask.call_one(guests).get(timeout=20))
        print(guests.slice(hosts=1).ask.call_one(guests.slice(hosts=0)).get(timeout=20))
        print(guests.slice(hosts=0).ask.call_one(here).get(timeout=20))
        sys.stdin.readline()
    """
    gateway, one, two = loop(), loop(), loop()
    for end in ("cleanly", "killed"):
        program = start_script(source, gateway.address, one.address, two.address)
        spawned = pids(program.line())
        assert [program.line() for _ in range(3)] == ["[1, 1]", "[2]", "[1]"]
        mine = [psutil.Process(program.pid), *psutil.Process(program.pid).children(recursive=True)]
        dialled = {c.raddr.port for each in mine for c in each.net_connections() if c.raddr and c.status != "LISTEN"}
        for host in (one, two):
            assert int(host.address.rpartition(":")[2]) not in dialled
        if end == "cleanly":
            program.say()
            assert program.wait() == 0, program.err
        else:
            program.signal(signal.SIGKILL)
        wait_until_gone(spawned, timeout=10)


def test_a_second_gateway_is_refused(loop: Loop) -> None:
    one, two = loop(), loop()
    attach(one.address)
    with pytest.raises(RoostError, match="already"):
        attach(two.address)
    with pytest.raises(AttachError, match="refused"):
        attach_to_workers(["tcp://127.0.0.1:1"], timeout=0.5).initialized.get(timeout=WAIT)


# --- who is not let in


def refusal(address: str, **options: Any) -> str:
    """What `initialized` and `spawn_procs` say."""
    hosts = attach_to_workers([address], **options)
    with pytest.raises(AttachError) as told:
        hosts.initialized.get(timeout=WAIT)
    with pytest.raises(AttachError) as again:
        hosts.spawn_procs()
    assert str(again.value) == str(told.value)
    assert address in str(told.value)
    assert "not attached" in repr(hosts)
    return str(told.value)


def test_a_port_nobody_listens_on_fails_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    assert "connection refused" in refusal(f"tcp://127.0.0.1:{port}", timeout=0.5)
    assert time.monotonic() - began < 5


def test_a_worker_that_is_still_starting_is_waited_for(loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    hosts = attach_to_workers([f"tcp://127.0.0.1:{port}"], timeout=WAIT)
    loop(f"tcp://127.0.0.1:{port}")
    assert hosts.spawn_procs().spawn("guest", Guest).add.call().get(timeout=WAIT).values() == [1]


def test_another_secret_is_refused_at_once(loop: Loop) -> None:
    host = loop()
    began = time.monotonic()
    assert "secret" in refusal(host.address, secret="some other secret, long enough", timeout=60)
    assert time.monotonic() - began < 5
    assert host.agent.is_running()


def test_another_version_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            there, _ = server.accept()
            with there:
                there.recv(4096)
                there.sendall(struct.pack(">6sHH", b"ROOST\0", 99, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        assert "protocol 99.0" in refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=60)
        thread.join()


def test_something_that_says_nothing_fails_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=0.5)
        assert "takes connections and says nothing" in told


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"no\n"])
def test_something_that_speaks_otherwise_fails_at_once(words: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def answer() -> None:
            there, _ = server.accept()
            with there:
                there.sendall(words)
                done.wait(WAIT)  # and keeps the connection

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        told = refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=60)
        done.set()
        thread.join()
        assert "is not a Roost process" in told and repr(words[:3])[1:-1] in told
        assert time.monotonic() - began < 5


def test_what_is_no_list_of_addresses_is_refused() -> None:
    with pytest.raises(TypeError):
        attach_to_workers("tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match="at least one"):
        attach_to_workers([])
    assert "is not an address" in refusal("127.0.0.1:1")


# --- the secret


def test_the_secret_stands_in_a_file_of_the_users_own_and_on_no_command_line(loop: Loop) -> None:
    host = loop()
    file = secret_file()
    assert file.stat().st_mode & 0o777 == 0o600
    secret = file.read_bytes().strip()
    assert len(secret) == 64
    guests = attach_to_workers([host.address], timeout=WAIT).spawn_procs().spawn("guest", Guest)
    everyone = [host.pid, host.agent.pid, *guests.pid.call().get(timeout=WAIT).values()]
    for pid in everyone:
        for what in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{pid}/{what}").read_bytes()


def test_many_that_need_the_secret_at_once_make_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home)}
    del env["ROOST_SECRET_FILE"]
    code = "from roost.mesh.secret import resolve_secret; print(resolve_secret(None).decode())"
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    found = {process.communicate(timeout=WAIT)[0] for process in running}
    assert len(found) == 1
    assert (home / ".roost").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (home / ".roost").iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused(mode: int) -> None:
    resolve_secret(None)
    secret_file().chmod(mode)
    with pytest.raises(RoostError, match=f"mode {mode:o}"):
        resolve_secret(None)
    with pytest.raises(RoostError, match="chmod 600"):
        attach_to_workers(["tcp://127.0.0.1:1"])


def test_a_secret_of_another_user_or_too_short_a_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_secret(None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        if secret_file().stat().st_uid != 0:
            with pytest.raises(RoostError, match="belongs to user"):
                resolve_secret(None)
    secret_file().write_text("short\n")
    with pytest.raises(RoostError, match="needs 16"):
        resolve_secret(None)
    with pytest.raises(RoostError, match="at least 16"):
        resolve_secret("short")
    assert resolve_secret("long enough to be one") == b"long enough to be one"


@pytest.mark.parametrize("what", ["a folder", "a named pipe", "a socket", "a link to nothing", "a link to itself"])
def test_a_secret_file_that_is_none_is_told_in_a_sentence(what: str) -> None:
    path = secret_file()
    held = socket.socket(socket.AF_UNIX)
    if what == "a folder":
        path.mkdir()
    elif what == "a named pipe":
        os.mkfifo(path, 0o600)
    elif what == "a socket":
        held.bind(str(path))
    else:
        path.symlink_to(path if what == "a link to itself" else path.with_name("nothing"))
    expected = {
        "a socket": "cannot be read: no such device or address",
        "a link to nothing": f"is a link to {path.with_name('nothing')}, which is not there",
        "a link to itself": "cannot be read: too many levels of symbolic links",
    }
    with held, pytest.raises(RoostError, match=expected.get(what, f"is {what}, not a regular file")) as told:
        resolve_secret(None)
    assert str(path) in str(told.value) and "Errno" not in str(told.value)


def test_a_secret_file_may_be_a_link(tmp_path: Path) -> None:
    secret = resolve_secret(None)
    secret_file().rename(tmp_path / "kept")
    secret_file().symlink_to(tmp_path / "kept")
    assert resolve_secret(None) == secret


# --- this machine's own agent


def test_this_host_works_again_after_its_agent_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.actors.unhandled_fault_hook", lambda failure: None)
    old = this_host()
    guests = old.spawn_procs().spawn("guest", Guest)
    pid = guests.pid.call_one().get(timeout=WAIT)
    psutil.Process(pid).parent().send_signal(signal.SIGKILL)
    with pytest.raises((ActorDied, Unreachable)):
        guests.ask.call_one(guests).get(timeout=WAIT)
    for hosts in (old, this_host()):
        again = hosts.spawn_procs({"gpus": 2}).spawn("guest", Guest)
        assert again.add.call().get(timeout=WAIT).values() == [1, 1]
    with pytest.raises(ActorDied, match="SIGKILL"):
        guests.add.call().get(timeout=WAIT)
