"""`install()`: what `import monarch` gives afterwards, here and in workers, and what it leaves alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACTOR_NAMES = [
    "Accumulator", "Actor", "ActorError", "current_actor_name", "as_endpoint", "current_rank", "current_size",
    "concurrent_endpoint", "endpoint", "Future", "returns_future", "Point", "ProcMesh", "ProcId", "Channel",
    "send", "shutdown_context", "ValueMesh", "debug_controller", "get_or_spawn_controller", "this_host",
    "this_proc", "default_bootstrap_cmd", "HostMesh", "context", "Port", "PortReceiver", "Endpoint", "Extent",
    "run_worker_loop_forever", "run_worker_loop_until_shutdown", "start_worker_loop_forever", "attach_to_workers",
    "attach", "enable_transport", "Context", "ChannelTransport", "unhandled_fault_hook", "MeshFailure", "config",
    "get_meter", "span", "traced", "Uid",
]  # fmt: skip


def python(code: str, *, path: Path | None = None, ok: bool = True) -> str:
    """What a fresh interpreter prints."""
    environment = {"PYTHONPATH": str(path)} if path is not None else {}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/", env=environment
    )
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout if ok else done.stderr


INSTALL = "from roost.compat.monarch import install; install()\n"


def test_every_public_name_of_monarch_actor_is_there() -> None:
    names = python(INSTALL + "import monarch.actor as a; print(*a.__all__); [getattr(a, n) for n in a.__all__]")
    assert names.split() == ACTOR_NAMES
    starred = python(INSTALL + "from monarch.actor import *; print(*(n for n in dir() if not n.startswith('__')))")
    assert set(starred.split()) == {*ACTOR_NAMES, "install"}


def test_every_name_of_every_module_is_there_and_needs_no_torch() -> None:
    code = """
import importlib, sys
from roost.compat.monarch.names import MODULES
for module, names in sorted(MODULES.items()):
    found = importlib.import_module(module)
    assert set(dir(found)) == set(names)
    for name in names:
        getattr(found, name)
print("torch" in sys.modules, len(MODULES) > 50)
"""
    assert python(INSTALL + code).split() == ["False", "True"]


def test_classes_are_roosts_own() -> None:
    code = """
import monarch, roost.actors, roost.mesh
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch._src.actor.actor_mesh import ActorMesh, Port
for name in ("Actor", "ActorError", "Channel", "Future", "MeshFailure", "Port", "PortReceiver", "endpoint", "context"):
    assert getattr(monarch.actor, name) is getattr(roost.actors, name), name
for name in ("HostMesh", "ProcMesh", "ValueMesh", "Extent", "Point", "this_host"):
    assert getattr(monarch.actor, name) is getattr(roost.mesh, name), name
assert SupervisionError is roost.actors.SupervisionError and ActorMesh is roost.mesh.ActorMesh
assert Port is monarch.actor.Port and monarch.Extent is roost.mesh.Extent
print("same")
"""
    assert python(INSTALL + code) == "same\n"


def test_installing_twice_is_installing_once() -> None:
    code = """
import sys
from roost.actors.policy import WORKER_SETUP, policy
install(); install(strict=True); import monarch.actor; install()
print(sum(type(f).__name__ == "Finder" for f in sys.meta_path), len(WORKER_SETUP), policy().mix_sync_async)
"""
    assert python(INSTALL + code) == "1 1 True\n"


def test_without_install_there_is_no_monarch() -> None:
    for code in ("import roost", "import roost.compat.monarch, roost.compat.monarch.finder"):
        told = python(
            f"{code}\nimport sys; sys.path[:] = [p for p in sys.path if 'site-packages' in p]\nimport monarch", ok=False
        )
        assert "No module named 'monarch'" in told


def test_roost_alone_imports_nothing_of_it() -> None:
    code = """
import roost, roost.actors, roost.mesh, roost.rdma, roost.controller, sys
for name in roost.__all__:
    getattr(roost, name)
print([name for name in sys.modules if name.startswith("roost.compat")])
"""
    assert python(code) == "[]\n"


def test_nothing_outside_of_it_imports_it() -> None:
    for folder in ("actors", "mesh", "rdma", "controller", "src/roost"):
        for path in (ROOT / folder).rglob("*.py"):
            if "compat" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not any("compat" in name.split(".") for name in names), path


def test_a_monarch_that_is_installed_is_not_found_any_more(tmp_path: Path) -> None:
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch" / "__init__.py").write_text("mark = 'another'\n")
    (tmp_path / "monarch" / "hidden.py").write_text("")
    assert python("import monarch; print(monarch.mark)", path=tmp_path) == "another\n"
    code = INSTALL + "import monarch; print(hasattr(monarch, 'mark'), monarch.__name__)\n"
    assert python(code, path=tmp_path) == "False monarch\n"
    assert "No module named 'monarch.hidden'" in python(INSTALL + "import monarch.hidden", path=tmp_path, ok=False)


def test_a_monarch_that_has_been_imported_already_is_told(tmp_path: Path) -> None:
    (tmp_path / "monarch.py").write_text("")
    told = python("import monarch\n" + INSTALL, path=tmp_path, ok=False)
    assert "monarch has been imported already" in told and "before the first `import monarch`" in told


def test_what_is_not_offered_says_so_when_it_is_used() -> None:
    code = """
from monarch import remote, fetch_shard, Stream
from monarch.actor import debug_controller
from monarch.job import SlurmJob, exec_command
from monarch.job.kubernetes import KubernetesJob
from monarch.remotemount import remotemount
import monarch.actor
for use in (lambda: remote("f"), lambda: fetch_shard(1), lambda: Stream("s"), debug_controller, lambda: exec_command(1),
            lambda: SlurmJob({"a": 1}), lambda: type("Mine", (KubernetesJob,), {}), lambda: remotemount("/a"),
            lambda: monarch.actor.this_proc().activate()):
    try:
        use()
    except NotImplementedError as error:
        print(str(error)[:60])
    else:
        print("nothing said")
from monarch.actor import nothing_like_it
"""
    told = subprocess.run([sys.executable, "-c", INSTALL + code], capture_output=True, text=True, timeout=60)
    lines = told.stdout.splitlines()
    assert len(lines) == 9 and all(": " in line for line in lines) and "nothing said" not in told.stdout, told
    assert lines[5].startswith("SlurmJob: it arrives with Roost's jobs") and "ImportError" in told.stderr


def test_workers_have_it_too_and_so_have_their_workers(run: Callable[..., Any]) -> None:
    program = """
    import monarch
    from monarch.actor import Actor, endpoint, this_host

    class Inner(Actor):
        @endpoint
        def look(self):
            import monarch.rdma, monarch._src.actor.shape
            return type(monarch).__name__, monarch.get_global_config()["cleanup_timeout"]

    class Outer(Actor):
        @endpoint
        def look(self):
            here = monarch.actor.Actor.__name__
            return here, this_host().spawn_procs().spawn("inner", Inner).look.call_one().get()

    procs = this_host().spawn_procs()
    monarch.configure(cleanup_timeout="7s")
    print(this_host().spawn_procs().spawn("outer", Outer).look.call_one().get())
    """
    assert run(program).out == "('Actor', ('StandIn', '7s'))\n"


def test_a_module_of_monarch_travels_by_name() -> None:
    code = "import monarch.actor, pickle, cloudpickle\n"
    code += "print(pickle.loads(cloudpickle.dumps(monarch.actor)) is monarch.actor)"
    assert python(INSTALL + code) == "True\n"
