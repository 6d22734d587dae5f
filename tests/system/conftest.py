"""Actors on one agent and on two, and the proof that a module of tests leaves nothing behind."""

from __future__ import annotations

import gc
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

ALLOWED_THREADS = ("roost-callbacks", "roost-copy")  # one set a process, idle, kept for the next runtime


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "roost" in name}


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing() -> Iterator[None]:
    """After `shutdown()` a module has left no process, thread, descriptor, run directory or shared memory."""
    uvloop.new_event_loop().close()  # libuv keeps a pipe of its own for the life of the process
    gc.collect()
    run_dir = Path(tempfile.mkdtemp(prefix="rt-"))
    before = os.environ.get("ROOST_RUN_DIR")
    os.environ["ROOST_RUN_DIR"] = str(run_dir)
    descriptors, threads, memory = _descriptors(), set(threading.enumerate()), _shared_memory()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        yield
    finally:
        local = sys.modules.get("roost.mesh.local")
        if local is not None:
            local.shutdown()
        if before is None:
            del os.environ["ROOST_RUN_DIR"]
        else:
            os.environ["ROOST_RUN_DIR"] = before
    gc.collect()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in children]
    assert not left, f"processes are left: {left}"
    new = [thread for thread in set(threading.enumerate()) - threads if not thread.name.startswith(ALLOWED_THREADS)]
    assert not new, f"threads are left: {new}"
    leaked = {number: what for number, what in _descriptors().items() if number not in descriptors}
    assert not leaked, f"descriptors are left: {leaked}"
    assert not _shared_memory() - memory, "shared memory is left"
    folders = os.listdir(run_dir)
    shutil.rmtree(run_dir)
    assert not folders, f"run directories are left: {folders}"


class Site:
    """Where a test's actors live: on one agent, or half of them on each of two that are linked by tcp."""

    def __init__(self, name: str, hosts: Any) -> None:
        self.name = name
        self.hosts = hosts
        self.agents = 1 if name == "one agent" else 2
        self._spawned: list[Any] = []

    def __repr__(self) -> str:
        return f"<Site of {self.name}>"

    def spawn_procs(self, count: int, **options: Any) -> Any:
        """A mesh of `count` processes in one dimension, `gpus`; stopped at the end of the test."""
        if self.agents == 1:
            procs = self.hosts.spawn_procs({"gpus": count}, **options)
        elif count == 1:
            procs = self.hosts.slice(hosts=1).spawn_procs({"gpus": 1}, **options)
        else:
            assert count % 2 == 0
            procs = self.hosts.spawn_procs({"gpus": count // 2}, **options).flatten("gpus")
        self._spawned.append(procs)
        return procs

    def stop_all(self) -> None:
        """Stop what the test has spawned."""
        stopping = [procs.stop() for procs in self._spawned]
        self._spawned.clear()
        for future in stopping:
            future.get(timeout=60)


@pytest.fixture(scope="module", params=["one agent", "two agents"])
def module_site(request: pytest.FixtureRequest, leaves_nothing: None) -> Iterator[Site]:
    """The agents of a module, started once."""
    from roost.controller import ProcessJob
    from roost.mesh import this_host

    if request.param == "one agent":
        yield Site(request.param, this_host())
        return
    with ProcessJob({"h": 2}) as job:
        yield Site(request.param, job.state().h)


@pytest.fixture
def site(module_site: Site) -> Iterator[Site]:
    """Agents to spawn on; every test that uses it runs on one agent and on two."""
    yield module_site
    module_site.stop_all()


@pytest.fixture
def spawn(site: Site) -> Callable[..., Any]:
    """`spawn(Class, *args, n=2)`: an actor mesh of `n` ranks in the dimension `gpus`, each in a process of its own."""

    def make(cls: type, *args: Any, n: int = 2, **kwargs: Any) -> Any:
        return site.spawn_procs(n).spawn(cls.__name__.lower(), cls, *args, **kwargs)

    return make


Faults = queue.SimpleQueue[Any]


@pytest.fixture(scope="module")
def reported() -> Iterator[Faults]:
    """What reaches the fault hook; the default one would end the test run. A module whose tests let things fail says
    `pytestmark = pytest.mark.usefixtures("reported")`."""
    import roost.actors

    seen: Faults = queue.SimpleQueue()
    before, roost.actors.unhandled_fault_hook = roost.actors.unhandled_fault_hook, seen.put
    yield seen
    roost.actors.unhandled_fault_hook = before


def forget(reported: Faults) -> None:
    """What earlier tests left unseen is not told any more."""
    from roost.actors.runtime import current_runtime

    runtime = current_runtime()
    for failure in runtime.supervisor.held if runtime is not None else ():
        failure.handle()
    while not reported.empty():
        reported.get()


@pytest.fixture
def faults(reported: Faults, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """The same for one test, with a short grace."""
    from roost.actors import supervision

    monkeypatch.setattr(supervision, "FAULT_GRACE", 0.1)
    forget(reported)
    return reported


class Barrier:
    """A place where sync endpoints stop until the test lets them pass: `troupe.stop_at(path)`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._held = os.open(path, os.O_RDWR)

    def open(self, count: int = 1) -> None:
        """Let `count` of them pass."""
        os.write(self._held, b"." * count)

    def close(self) -> None:
        """Let nobody pass any more, but for those who got through."""
        os.close(self._held)


@pytest.fixture
def barrier(tmp_path: Path) -> Iterator[Barrier]:
    """A closed barrier; whoever still stands there at the end of the test goes on."""
    made = Barrier(tmp_path / "barrier")
    yield made
    made.open(64)
    made.close()
