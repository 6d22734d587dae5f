"""Roost: actor meshes for PyTorch. One Python program runs a cluster.

    from roost import Actor, endpoint, this_host

    class Counter(Actor):
        def __init__(self, start):
            self.n = start

        @endpoint
        def add(self, by):
            self.n += by
            return self.n

    procs = this_host().spawn_procs({"gpus": 4})
    counters = procs.spawn("counter", Counter, 5)
    print(counters.add.call(1).get())

The names below are the common ones; all others are in `roost.actors`, `roost.mesh`, `roost.rdma` and
`roost.controller`. Nothing is imported before it is used: `import roost` takes a few milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Actor": "actors",
    "ActorDied": "actors",
    "ActorError": "actors",
    "Channel": "actors",
    "Future": "actors",
    "MeshFailure": "actors",
    "Port": "actors",
    "SupervisionError": "actors",
    "Unreachable": "actors",
    "as_completed": "actors",
    "context": "actors",
    "current_rank": "actors",
    "current_size": "actors",
    "endpoint": "actors",
    "wait": "actors",
    "ActorMesh": "mesh",
    "Extent": "mesh",
    "HostMesh": "mesh",
    "Point": "mesh",
    "ProcMesh": "mesh",
    "RestartPolicy": "mesh",
    "ValueMesh": "mesh",
    "attach_to_workers": "mesh",
    "get_or_spawn_controller": "mesh",
    "shutdown": "mesh",
    "this_host": "mesh",
    "this_proc": "mesh",
    "RDMABuffer": "rdma",
    "ProcessJob": "controller",
}

__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Extent",
    "Future",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "ProcMesh",
    "ProcessJob",
    "RDMABuffer",
    "RestartPolicy",
    "SupervisionError",
    "Unreachable",
    "ValueMesh",
    "as_completed",
    "attach_to_workers",
    "context",
    "current_rank",
    "current_size",
    "endpoint",
    "get_or_spawn_controller",
    "shutdown",
    "this_host",
    "this_proc",
    "wait",
]

if TYPE_CHECKING:
    from .actors import (
        Actor,
        ActorDied,
        ActorError,
        Channel,
        Future,
        MeshFailure,
        Port,
        SupervisionError,
        Unreachable,
        as_completed,
        wait,
    )
    from .actors.context import context, current_rank, current_size
    from .actors.endpoint import endpoint
    from .controller import ProcessJob
    from .mesh import (
        ActorMesh,
        Extent,
        HostMesh,
        Point,
        ProcMesh,
        RestartPolicy,
        ValueMesh,
        attach_to_workers,
        get_or_spawn_controller,
        shutdown,
        this_host,
        this_proc,
    )
    from .rdma import RDMABuffer


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'roost' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
