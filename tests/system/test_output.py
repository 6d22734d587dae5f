"""Output of real workers as the program shows it, its filters at run time, and stacks of workers that hang."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib.util
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from troupe import stop_at

from roost.actors import Actor, Port, endpoint
from roost.mesh.agent.dumps import find_py_spy
from roost.mesh.launch import dump

PATIENCE = 30.0

TWO_AGENTS = """
import sys
from roost import ProcessJob
from test_output import Speaker
hosts = ProcessJob({"h": 2}).state().h
"""


class Speaker(Actor):
    """Writes what it is told to."""

    @endpoint
    def say(self, *lines: str) -> None:
        for line in lines:
            print(line)

    @endpoint
    def raw(self, text: str, descriptor: int = 1) -> None:
        os.write(descriptor, text.encode())

    @endpoint
    def say_after(self, barrier: str, line: str) -> None:
        stop_at(barrier)
        print(line)

    @endpoint
    def both(self, count: int) -> None:
        for i in range(count):
            print(f"out {i}")
            print(f"err {i}", file=sys.stderr)

    @endpoint
    def die_after(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def flood(self, count: int, line: str) -> float:
        begin = time.monotonic()
        for _ in range(count):
            print(line)
        return time.monotonic() - begin

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def ping(self) -> str:
        return "pong"


class Sleeper(Actor):
    """Hangs in several ways; says so first."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def stand(self, barrier: str, port: Port[str]) -> None:
        port.send("here")
        stop_at(barrier)

    @endpoint
    def keep_the_gil(self, port: Port[str]) -> None:
        port.send("here")
        ctypes.PyDLL(None).sleep(3)

    @endpoint
    def keep_the_gil_without_handler(self, port: Port[str]) -> None:
        faulthandler.unregister(dump.SIGNAL)
        port.send("here")
        ctypes.PyDLL(None).sleep(3)


class Waiter(Actor):
    """Its endpoints await."""

    def __init__(self) -> None:
        self.never = asyncio.Event()

    @endpoint
    async def wait(self, port: Port[str]) -> None:
        port.send("here")
        async with asyncio.TaskGroup() as group:
            group.create_task(self.inner(), name="its-own")

    @endpoint
    async def ask(self, other: Any, barrier: str, port: Port[str]) -> None:
        await other.stand.call_one(barrier, port)

    async def inner(self) -> None:
        await self.never.wait()


def _lines(out: str) -> list[str]:
    return out.splitlines()


# how lines arrive


def test_lines_of_both_streams_arrive_in_order_with_their_rank(run_script: Callable[..., Any]) -> None:
    script = run_script(
        TWO_AGENTS
        + """
procs = hosts.spawn_procs({"gpus": 1}, name="t")
procs.spawn("s", Speaker).both.call(500).get()
"""
    )
    for rank in range(2):
        mine = [i for line in _lines(script.out) for i in _numbers(line, rank)]
        assert mine == [f"{kind} {i}" for i in range(500) for kind in ("out", "err")]


def _numbers(line: str, rank: int) -> list[str]:
    match = re.fullmatch(r"\[t[- ](\d)(?:-(\d))?\] (.*)", line)
    assert match, line
    return [match[3]] if int(match[1]) <= rank <= int(match[2] or match[1]) else []


def test_the_same_line_of_eight_ranks_is_shown_once_and_then_together(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        from roost import this_host
        from test_output import Speaker
        procs = this_host().spawn_procs({"gpus": 8}, name="trainer")
        speakers = procs.spawn("s", Speaker)
        speakers.say.call("ready", "steady").get()
        """
    )
    lines = _lines(script.out)
    assert len(lines) == 4, lines
    for text in ("ready", "steady"):
        first, rest = (line for line in lines if line.endswith(text))
        match = re.fullmatch(rf"\[trainer-(\d)\] {text}", first)
        assert match
        others = ",".join(filter(None, (_span(0, int(match[1]) - 1), _span(int(match[1]) + 1, 7))))
        assert rest == f"[trainer {others}] {text}"


def _span(first: int, last: int) -> str:
    return "" if last < first else str(first) if first == last else f"{first}-{last}"


def test_the_last_lines_of_a_killed_worker_arrive_even_without_a_line_end(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        from roost import this_host, ActorDied
        from test_output import Speaker
        speaker = this_host().spawn_procs(name="t").spawn("s", Speaker)
        try:
            speaker.die_after.call_one("x\\n" * 10 + "one\\ntwo, unfinished").get()
        except ActorDied as error:
            print("died")
        """
    )
    lines = [line for line in _lines(script.out) if line != "died"]
    assert lines[-2:] == ["[t-0] one", "[t-0] two, unfinished"]


def test_a_line_without_end_appears_while_the_worker_runs(start_script: Callable[..., Any]) -> None:
    script = start_script(
        """
        from roost import this_host
        from test_output import Speaker
        speaker = this_host().spawn_procs(name="t").spawn("s", Speaker)
        speaker.raw.call_one("Continue? ").get()
        input()
        """
    )
    assert script.line() == "[t-0] Continue? "
    script.say()
    assert script.wait() == 0


def test_what_a_worker_of_a_worker_writes_arrives_too(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        from roost import Actor, endpoint, this_host
        from test_output import Speaker

        class Parent(Actor):
            @endpoint
            def spawn(self):
                child = this_host().spawn_procs(name="child").spawn("s", Speaker)
                child.say.call_one("from below").get()

        this_host().spawn_procs(name="parent").spawn("p", Parent).spawn.call_one().get()
        """
    )
    assert _lines(script.out) == ["[child-0] from below"]


def test_what_a_worker_spawns_on_another_host_arrives_as_its_own(run_script: Callable[..., Any]) -> None:
    script = run_script(
        TWO_AGENTS
        + """
from roost import Actor, endpoint
class Parent(Actor):
    @endpoint
    def spawn(self, there):
        child = there.spawn_procs(name="child").spawn("s", Speaker)
        child.say.call_one("from afar").get()
        self.child = child

parent = hosts.slice(hosts=0).spawn_procs(name="parent").spawn("p", Parent)
parent.spawn.call_one(hosts.slice(hosts=1)).get()
"""
    )
    assert _lines(script.out) == ["[parent-0] [child-0] from afar"]


def test_a_flood_of_one_worker_delays_no_calls_and_says_what_was_dropped(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        import time
        from roost import this_host
        from test_output import Speaker
        procs = this_host().spawn_procs({"gpus": 2}, name="t")
        speakers = procs.spawn("s", Speaker)
        speakers.ping.call().get()
        flood = speakers.slice(gpus=0).flood.call_one(500_000, "z" * 99)
        other, longest = speakers.slice(gpus=1), 0.0
        while not flood.done():
            begin = time.monotonic()
            assert other.ping.call_one().get(timeout=10) == "pong"
            longest = max(longest, time.monotonic() - begin)
        speakers.slice(gpus=0).say.call_one("the end").get()
        print("longest", longest, "flood", flood.get())
        """,
        timeout=90,
    )
    lines = _lines(script.out)
    dropped = sum(int(match[1]) for match in re.finditer(r"\((\d+) bytes were dropped here", script.out))
    shown = sum(int(m[1]) if (m := re.search(r"repeated (\d+)", line)) else 1 for line in lines if "zzz" in line)
    assert "[t-0] the end" in lines
    assert dropped + 100 * shown == 100 * 500_000
    longest = float(next(line for line in lines if line.startswith("longest")).split()[1])
    assert longest < 1.0


def test_a_stopped_agent_holds_no_worker_up_and_loses_nothing(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        import os, signal
        from roost import this_host
        from roost.mesh.local import controller
        from test_output import Speaker
        procs = this_host().spawn_procs({"gpus": 2}, name="t")
        speakers = procs.spawn("s", Speaker)
        speakers.ping.call().get()
        agent = controller().local.process.pid
        os.kill(agent, signal.SIGSTOP)
        try:
            speakers.slice(gpus=0).say.call_one(*map(str, range(20_000))).get(timeout=20)
            assert speakers.ping.call().get(timeout=20).values() == ["pong", "pong"]
        finally:
            os.kill(agent, signal.SIGCONT)
        """
    )
    assert _lines(script.out) == [f"[t-0] {i}" for i in range(20_000)]


def test_nobody_reading_the_programs_output_holds_up_no_call(start_script: Callable[..., Any]) -> None:
    script = start_script(
        """
        import sys
        from roost import this_host
        from test_output import Speaker
        procs = this_host().spawn_procs({"gpus": 2}, name="t")
        speakers = procs.spawn("s", Speaker)
        for i in range(50):
            speakers.say.call(*(f"{i} {j} " + "x" * 500 for j in range(100))).get(timeout=20)
        sys.stderr.write("done\\n")
        sys.stderr.flush()
        """
    )
    until = time.monotonic() + PATIENCE
    os.set_blocking(script.process.stderr.fileno(), False)
    said = b""
    while b"done" not in said and time.monotonic() < until:
        said += script.process.stderr.read() or b""
        if script.process.poll() is not None:
            break
        time.sleep(0.02)
    assert b"done" in said, said
    os.set_blocking(script.process.stderr.fileno(), True)
    assert script.wait() == 0


def test_logging_is_not_patched() -> None:
    before = (logging.Logger.addHandler, logging.Logger.handle, logging.basicConfig, logging.getLogger)
    from roost.mesh import this_host

    this_host()
    assert (logging.Logger.addHandler, logging.Logger.handle, logging.basicConfig, logging.getLogger) == before
    assert not logging.getLogger().handlers or all("roost" not in str(h) for h in logging.getLogger().handlers)


# filters


FILTERS = """
import logging
procs = hosts.spawn_procs({"gpus": 1}, name="t")
speakers = procs.spawn("s", Speaker)
def say(*lines):
    speakers.say.call(*lines).get()
say("first")
procs.logging_option(aggregate_window_sec=None, level=logging.WARNING).get()
say("INFO:root:left out", "WARNING:root:kept", "plain")
procs.logging_option(aggregate_window_sec=None, ranks=[1]).get()
say("only one")
procs.logging_option(aggregate_window_sec=None, regex="loss=").get()
say("step 3", "loss=0.25")
procs.logging_option(stream_to_client=False).get()
say("in the file only")
procs.logging_option(aggregate_window_sec=None, level=logging.DEBUG).get()
say("DEBUG last")
files = procs.log_files().get()
print("FILES", all("in the file only" in open(file.path).read() for _, file in files))
"""


def test_filters_change_at_run_time_on_every_host(run_script: Callable[..., Any]) -> None:
    script = run_script(TWO_AGENTS + FILTERS)
    lines = _lines(script.out)
    shown = [re.sub(r"^\[t[- ]", "[", line) for line in lines]
    assert sorted(shown) == sorted(
        [
            "FILES True",
            next(line for line in shown if line.endswith("first")),
            next(line for line in reversed(shown) if line.endswith("first")),
            "[0] WARNING:root:kept",
            "[1] WARNING:root:kept",
            "[0] plain",
            "[1] plain",
            "[1] only one",
            "[0] loss=0.25",
            "[1] loss=0.25",
            "[0] DEBUG last",
            "[1] DEBUG last",
        ]
    )


def test_filters_that_make_no_sense_are_refused_at_the_call(site: Any) -> None:
    procs = site.spawn_procs(2)
    for options, message in (
        ({"aggregate_window_sec": 0}, "aggregate_window_sec is a time"),
        ({"ranks": [5]}, r"ranks=\[5\] are not in a mesh of 2"),
        ({"regex": "("}, "is not a regular expression"),
    ):
        with pytest.raises(ValueError, match=message):
            procs.logging_option(**options)
    with pytest.raises(TypeError, match="level is a number"):
        procs.logging_option(level="INFO")


def test_a_filter_can_be_awaited(site: Any) -> None:
    async def main() -> None:
        await site.spawn_procs(2).logging_option(stream_to_client=False)

    asyncio.run(main())


# stacks


def _hang(actor: Any, method: str, *arguments: Any) -> Any:
    """Call an endpoint, and wait until it runs."""
    from roost.actors import Channel

    port, receiver = Channel.open()
    future = getattr(actor, method).call_one(*arguments, port)
    assert receiver.recv().get(timeout=PATIENCE) == "here"
    return future


def test_stacks_show_actor_rank_endpoint_and_line_of_a_sync_endpoint(site: Any, barrier: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("sleeper", Sleeper)
    mesh.pid.call().get(timeout=PATIENCE)
    _hang(mesh.slice(gpus=1), "stand", barrier.path)
    begin = time.monotonic()
    stacks = procs.stacks(timeout=10).get(timeout=PATIENCE)
    assert time.monotonic() - begin < 5
    assert "actor sleeper[0] (MainThread) waits for messages" in stacks.item(gpus=0)
    text = stacks.item(gpus=1)
    assert "actor sleeper[1] (MainThread) runs stand" in text
    assert "stop_at(barrier)" in text and "file.read(1)" in text
    assert "roost-io" not in text and "zygote.py" not in text
    barrier.open(1)


def test_stacks_show_what_async_endpoints_and_their_tasks_await(site: Any, barrier: Any) -> None:
    procs = site.spawn_procs(2)
    waiter, sleeper = procs.spawn("waiter", Waiter), procs.spawn("sleeper", Sleeper)
    first = _hang(waiter.slice(gpus=0), "wait")
    second = _hang(waiter.slice(gpus=1), "ask", sleeper.slice(gpus=0), barrier.path)
    stacks = procs.stacks(timeout=10).get(timeout=PATIENCE)
    text = stacks.item(gpus=0)
    assert re.search(r"actor waiter\[0\] \(task .*\) runs wait", text)
    assert "task its-own" in text and "await self.never.wait()" in text
    text = stacks.item(gpus=1)
    assert re.search(r"actor waiter\[1\] \(task .*\) runs ask", text)
    assert re.search(r"awaits <Future of sleeper.stand.*pending", text)
    barrier.open(1)
    second.get(timeout=PATIENCE)
    first.cancel()


def test_stacks_of_a_process_whose_gil_is_kept_by_c_code(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("sleeper", Sleeper)
    future = _hang(mesh.slice(gpus=1), "keep_the_gil")
    begin = time.monotonic()
    text = procs.stacks(timeout=2.5).get(timeout=PATIENCE).item(gpus=1)
    took = time.monotonic() - begin
    assert "does not answer" in text and "ctypes.PyDLL(None).sleep(3)" in text
    assert took < 2.6
    future.get(timeout=PATIENCE)
    assert mesh.pid.call().get(timeout=PATIENCE)  # it has lived through it


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
def test_py_spy_shows_the_stacks_of_a_process_that_answers_nothing_else(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("sleeper", Sleeper)
    _hang(mesh.slice(gpus=0), "keep_the_gil_without_handler")
    text = procs.stacks(timeout=2.5).get(timeout=PATIENCE).item(gpus=0)
    if "no handler" in text:
        pytest.skip("py-spy may not look at processes here")
    assert "by py-spy" in text and "keep_the_gil_without_handler" in text


def test_stacks_of_stopped_and_dead_processes_are_sentences(site: Any) -> None:
    procs = site.spawn_procs(2)
    pids = procs.spawn("sleeper", Sleeper).pid.call().get(timeout=PATIENCE).values()
    os.kill(pids[1], signal.SIGSTOP)
    try:
        text = procs.stacks(timeout=5).get(timeout=PATIENCE).item(gpus=1)
        assert f"(pid {pids[1]}) is stopped by a signal (state T)" in text
    finally:
        os.kill(pids[1], signal.SIGCONT)


def test_stacks_are_complete_in_time_when_the_agent_is_stopped_too(run_script: Callable[..., Any]) -> None:
    script = run_script(
        """
        import os, signal, time
        from roost import this_host
        from roost.mesh.local import controller
        from test_output import Speaker
        procs = this_host().spawn_procs({"gpus": 2}, name="t")
        pids = procs.spawn("s", Speaker).pid.call().get().values()
        stopped = [controller().local.process.pid, pids[1]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        stacks = procs.stacks(timeout=1.0).get(timeout=10)
        took = time.monotonic() - begin
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert took < 2, took
        print(stacks.item(gpus=1))
        assert "waits for messages" in stacks.item(gpus=0)
        """
    )
    assert "neither it nor its agent answered within 1 s" in script.out


# notebooks

NOTEBOOK = r"""
import json
from jupyter_client.manager import start_new_kernel
cells = json.loads(input())
manager, client = start_new_kernel(kernel_name="python3")
try:
    sent = []
    for source in cells:
        sent.append(client.execute(source))
        reply = client.get_shell_msg(timeout=30)
        assert reply["content"]["status"] == "ok", reply["content"]
    last, shown = client.execute("'the end'"), dict.fromkeys(sent, "")
    while True:
        message = client.get_iopub_msg(timeout=30)
        parent = message["parent_header"].get("msg_id")
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            shown[parent] = shown.get(parent, "") + message["content"]["text"]
        elif message["msg_type"] == "execute_result" and parent == last:
            break
    print(json.dumps(list(shown.values())))
finally:
    client.stop_channels()
    manager.shutdown_kernel()
"""


@pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="needs ipykernel")
def test_in_a_notebook_output_goes_to_the_cell_that_caused_it(start_script: Callable[..., Any]) -> None:
    cells = [
        "import os; from roost import this_host; from test_output import Speaker; os.mkfifo('b')",
        "procs = this_host().spawn_procs({'gpus': 2}, name='t'); s = procs.spawn('s', Speaker)",
        "x = s.say.call('from the third').get()",
        "later = s.slice(gpus=0).say_after.call_one('b', 'from the fourth')",
        "x = s.slice(gpus=1).say.call_one('from the fifth').get()\n"
        "with open('b', 'w') as file: n = file.write('.')\n"
        "later.get()",
        "x = s.say.call('from the sixth').get()",
        "print('own')",
    ]
    script = start_script(NOTEBOOK)
    script.say(json.dumps(cells))
    assert script.wait() == 0, script.err
    shown = json.loads(script.out)
    assert shown[:2] == ["", ""]
    assert sorted(_lines(shown[2])) == ["[t-0] from the third", "[t-1] from the third"]
    assert shown[3] == "[t-0] from the fourth\n"
    assert shown[4] == "[t-1] from the fifth\n"
    assert sorted(_lines(shown[5])) == ["[t-0] from the sixth", "[t-1] from the sixth"]
    assert shown[6:] == ["own\n"]
