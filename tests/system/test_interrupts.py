"""Ctrl-C at any moment, children that user code forks, signal handlers that raise: Roost's own state stays whole."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_storm_of_interrupts_leaves_every_later_call_right(run_script: Any) -> None:
    script = run_script(
        """
        import os, random, signal, threading, time
        from roost import Actor, endpoint, this_host
        from roost.actors.node import current_node

        class Echo(Actor):
            @endpoint
            def echo(self, value): return value

        def storm():
            for _ in range(150):
                time.sleep(random.random() * 0.006)
                os.kill(os.getpid(), signal.SIGINT)

        actors = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
        one = actors.slice(gpus=0).echo
        assert one.call_one(0).get(30) == 0
        sender = threading.Thread(target=storm)
        sender.start()
        caught = 0
        while sender.is_alive():
            try:
                for number in range(50):
                    assert one.call_one(number).get(30) == number
                futures = [one.call_one(number) for number in range(200)]
                assert [future.get(30) for future in futures] == list(range(200))
                assert actors.echo.call("x").get(30).values() == ["x", "x"]
            except KeyboardInterrupt:
                caught += 1
        for _ in range(3):
            try:
                for number in range(300):
                    assert one.call_one(number).get(30) == number
                assert actors.echo.call("y").get(30).values() == ["y", "y"]
                break
            except KeyboardInterrupt:  # the last of the storm
                continue
        else:
            raise SystemExit("interrupted for ever")
        readers = current_node().io.readers
        print("caught", caught > 20, "led", readers.led > 0, "free", readers._lead.acquire(blocking=False), flush=True)
        """,
        timeout=60,
    )
    assert script.out.split() == ["caught", "True", "led", "True", "free", "True"]


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "raise SystemExit(3)", "raise ValueError('in the child')", "return 'child'"]
)
def test_a_child_that_an_endpoint_forks_never_answers_for_its_parent(run_script: Any, ending: str) -> None:
    script = run_script(
        f"""
        from roost import Actor, endpoint, this_host

        class Forker(Actor):
            @endpoint
            def fork(self):
                import os
                pid = os.fork()
                if pid == 0:
                    {ending}
                os.waitpid(pid, 0)
                return "parent"
            @endpoint
            def echo(self, value): return value

        actors = this_host().spawn_procs({{"gpus": 2}}).spawn("forker", Forker)
        for _ in range(3):
            print(*actors.fork.call().get(30).values(), *actors.echo.call(1).get(30).values(), flush=True)
        """
    )
    answers = [line for line in script.out.splitlines() if not line.startswith("[")]
    assert answers == ["parent parent 1 1"] * 3


def test_a_signal_handler_that_raises_in_an_idle_actor_fails_it_with_a_sentence(run_script: Any) -> None:
    script = run_script(
        """
        import os, signal
        from roost import Actor, ActorDied, endpoint, this_host
        import roost.actors
        roost.actors.unhandled_fault_hook = lambda failure: None

        class Touchy(Actor):
            def __init__(self):
                def handler(number, frame):
                    raise OSError("alarmed")
                signal.signal(signal.SIGUSR2, handler)
            @endpoint
            def pid(self): return os.getpid()

        procs = this_host().spawn_procs()
        touchy = procs.spawn("touchy", Touchy)
        pid = touchy.pid.call_one().get(30)
        while open(f"/proc/{pid}/syscall").read().split()[0] not in ("232", "281", "22"):
            pass  # until it waits in epoll
        os.kill(pid, signal.SIGUSR2)
        try:
            while True:
                touchy.pid.call_one().get(30)
        except (ActorDied, OSError) as error:
            print("alarmed" in str(error), flush=True)
        """
    )
    assert script.out.split() == ["True"]


def test_interrupts_while_the_runtime_starts_leave_nothing(run_script: Any, tmp_path: Any) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    script = run_script(
        """
        import os, signal, threading, time
        from roost import shutdown, this_host
        for turn in range(8):
            timer = threading.Timer(0.02 * turn, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                this_host()
                while True:  # exactly one interrupt comes, there or here
                    time.sleep(0.01)
            except KeyboardInterrupt:
                pass
            timer.join()
            shutdown()
        print(os.listdir(os.environ["ROOST_RUN_DIR"]), threading.active_count() <= 2, flush=True)
        """,
        timeout=60,
        env={"ROOST_RUN_DIR": str(runs)},
    )
    assert script.out.strip() == "[] True"
