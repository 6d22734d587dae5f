"""`python -m roost.compat.monarch`: programs are run as python would run them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_a_script_sees_what_python_would_show_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    program = """
    import sys, beside, monarch.actor
    print(__name__, __file__ == sys.argv[0], sys.argv[1:], __spec__, sys.path[0], beside.word)
    print(sys.modules["__main__"].__dict__ is globals())
    import atexit; atexit.register(lambda: print("later", monarch.actor.__name__))
    """
    ended = run(program, "a", "--b")
    assert ended.out.splitlines() == [
        f"__main__ True ['a', '--b'] None {tmp_path} beside",
        "True",
        "later monarch.actor",
    ]


def test_a_module_runs_with_dash_m(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("word = 'inside'\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom .names import word\nprint(__name__, __package__, word, sys.argv[1:])"
    )
    (package / "tool.py").write_text("import sys\nprint(__spec__.name, sys.argv[1:])")
    env = {"PYTHONPATH": str(tmp_path)}
    assert run("", options=("-m", "pack", "x"), env=env).out.split()[:3] == ["__main__", "pack", "inside"]
    assert "pack.tool ['x'" in run("", options=("-m", "pack.tool", "x"), env=env).out
    assert "no module 'pack.none'" in run("", options=("-m", "pack.none"), env=env, code=1).err


def test_a_folder_with_a_main_runs(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text("import helper, sys; print(helper.word, sys.argv[1:])")
    (folder / "helper.py").write_text("word = 'helped'")
    assert run(folder, "x").out == "helped ['x']\n"


def test_what_a_script_raises_is_told_as_python_tells_it(run: Run) -> None:
    ended = run("def f():\n    raise ValueError('mine')\nf()\n", code=1)
    lines = ended.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: mine"
    assert "roost" not in ended.err
    assert run("raise SystemExit(7)", code=7).err == ""
    assert run("import sys; sys.exit('gone')", code=1).err == "gone\n"


def test_no_script_and_no_such_script_are_told(run: Run, tmp_path: Path) -> None:
    assert "there is no script" in run(tmp_path / "none.py", code=1).err
    assert "usage" in run("", options=("--help",)).out


def test_a_failure_that_nobody_handles_ends_the_program(run: Run) -> None:
    program = """
    import threading
    from monarch.actor import Actor, endpoint, this_host

    class Fragile(Actor):
        @endpoint
        def crack(self):
            raise ValueError("cracked")

    this_host().spawn_procs().spawn("fragile", Fragile).crack.broadcast()
    try:
        threading.Event().wait(60)
    finally:
        print("left")
    """
    ended = run(program, code=None, env={"ROOST_FAULT_GRACE": "0.2"})
    assert ended.code not in (0, None) and ended.out == "left\n"
    assert "cracked" in ended.err and "fragile" in ended.err


def test_a_hook_that_exits_ends_the_program(run: Run) -> None:
    program = """
    import sys, threading
    import monarch.actor
    from monarch.actor import Actor, endpoint, this_host

    class Fragile(Actor):
        @endpoint
        def crack(self):
            raise ValueError("cracked")

    def hook(failure):
        print("told of", failure.mesh_name, flush=True)
        sys.exit(1)

    monarch.actor.unhandled_fault_hook = hook
    this_host().spawn_procs().spawn("fragile", Fragile).crack.broadcast()
    threading.Event().wait(60)
    """
    ended = run(program, code=None, env={"ROOST_FAULT_GRACE": "0.2"})
    assert ended.code not in (0, None) and ended.out == "told of fragile\n"
    assert "cracked" in ended.err


def test_the_hook_can_be_set_anywhere_and_is_seen_everywhere(run: Run) -> None:
    program = """
    from unittest import mock
    import monarch.actor, monarch._src.actor.supervision, roost.actors
    own = monarch.actor.unhandled_fault_hook
    with mock.patch("monarch.actor.unhandled_fault_hook") as fake:
        print(monarch._src.actor.supervision.unhandled_fault_hook is fake, roost.actors.unhandled_fault_hook is own)
        roost.actors.unhandled_fault_hook("failure")
        print(fake.call_args.args)
    print(roost.actors.unhandled_fault_hook is own, monarch.actor.unhandled_fault_hook is own)
    """
    assert run(program).out.splitlines() == ["True False", "('failure',)", "True True"]


def test_strict_is_monarchs_manners(run: Run) -> None:
    program = """
    import os, time
    import monarch.actor
    from monarch.actor import Actor, ActorError, current_rank, endpoint, this_host

    faults = []
    monarch.actor.unhandled_fault_hook = faults.append

    class Mixed(Actor):
        @endpoint
        def a(self): ...
        @endpoint
        async def b(self): ...

    class Slow(Actor):
        @endpoint
        def fail(self, seconds):
            if current_rank().rank == 0:
                raise ValueError("at once")
            time.sleep(seconds)

        @endpoint
        def die(self):
            os._exit(3)

    procs = this_host().spawn_procs(per_host={"gpus": 2})
    try:
        procs.spawn("mixed", Mixed)
    except ValueError as error:
        print("mixes both async and sync" in str(error))
    slow = procs.spawn("slow", Slow)
    slow.initialized.get()
    begin = time.monotonic()
    try:
        slow.fail.call(1.0).get()
    except ValueError:
        print("its own type")
    except ActorError as error:
        print(time.monotonic() - begin > 0.9, "Traceback of where the remote call failed" in str(error), error.message)
    try:
        slow.die.call().get()
    except RuntimeError as error:
        print(type(error).__name__)
    until = time.monotonic() + 30
    while not faults and time.monotonic() < until:
        time.sleep(0.01)
    print(len(faults) > 0)
    """
    ended = run(program, options=("--strict",), env={"ROOST_FAULT_GRACE": "0.2"})
    assert ended.out.splitlines() == ["True", "True True Actor call slow.fail failed.", "ActorDied", "True"], ended


def test_by_default_the_better_manners_stand(run: Run) -> None:
    program = """
    import os, time
    import monarch.actor
    from monarch.actor import Actor, ActorError, current_rank, endpoint, this_host

    faults = []
    monarch.actor.unhandled_fault_hook = faults.append

    class Slow(Actor):
        @endpoint
        def fail(self, seconds):
            if current_rank().rank == 0:
                raise ValueError("at once")
            time.sleep(seconds)

        @endpoint
        async def asynchronous(self):
            return "mixed"

        @endpoint
        def die(self):
            os._exit(3)

    slow = this_host().spawn_procs(per_host={"gpus": 2}).spawn("slow", Slow)
    print(slow.asynchronous.call().get().item(gpus=0))
    begin = time.monotonic()
    try:
        slow.fail.call(5.0).get()
    except ValueError as error:
        print(time.monotonic() - begin < 4, isinstance(error, ActorError), error.exception.args)
    one = slow.slice(gpus=0).die.call_one()
    try:
        one.get()
    except RuntimeError:
        time.sleep(1)
    print(faults)
    """
    ended = run(program, env={"ROOST_FAULT_GRACE": "0.2"})
    assert ended.out.splitlines() == ["mixed", "True True ('at once',)", "[]"], ended


def test_programs_attach_to_worker_loops(run: Run, tmp_path: Path) -> None:
    program = """
    import socket, subprocess, sys
    from monarch.actor import Actor, attach_to_workers, current_rank, endpoint, start_worker_loop_forever

    loop = "from monarch.actor import run_worker_loop_forever as r; r(address=sys.argv[1], ca='trust_all_connections')"
    start = "import sys; from roost.compat.monarch import install; install(); " + loop

    def free_port():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    class Where(Actor):
        @endpoint
        def rank(self):
            return dict(current_rank())

    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    loops = [subprocess.Popen([sys.executable, "-c", start, address]) for address in addresses]
    hosts = attach_to_workers(ca="trust_all_connections", workers=addresses)
    hosts.initialized.get()
    where = hosts.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    print(hosts.extent, where.rank.call().get().item(hosts=1, gpus=0))
    hosts.shutdown().get()
    print([loop.wait(30) for loop in loops])
    try:
        attach_to_workers(ca=b"certificate", workers=addresses)
    except NotImplementedError as error:
        print("TLS security plumbing" in str(error))
    """
    assert run(program).out.splitlines() == ["{hosts: 2} {'hosts': 1, 'gpus': 0}", "[0, 0]", "True"]
    assert os.stat(tmp_path / ".roost" / "secret").st_mode & 0o077 == 0
