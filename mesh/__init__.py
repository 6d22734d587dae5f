"""Meshes: hosts, processes and actors in named dimensions."""

from __future__ import annotations

from .actormesh import ActorMesh
from .attaching import AttachError, attach, attach_to_workers
from .commands import BootstrapCommand, default_bootstrap_cmd
from .dispatch import Replicate
from .ending import shutdown_context
from .endpoints import CallOptions, MeshEndpoint
from .hostloop import run_worker_loop_forever, run_worker_loop_until_shutdown, start_worker_loop_forever
from .hostmesh import HostMesh
from .local import shutdown, this_host, this_proc
from .logs import LogFile
from .naming import NameTaken, NameUnknown, find, get_or_spawn_controller, lookup, names, publish, unpublish
from .procmesh import ProcMesh
from .restart import RestartPolicy
from .shape import Extent, NDSlice, Point, Region, Shape, Slice
from .spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from .undecorated import NotAnEndpoint, as_endpoint
from .valuemesh import ValueMesh

__all__ = [
    "ActorMesh",
    "AttachError",
    "BootstrapCommand",
    "CallOptions",
    "Extent",
    "HostMesh",
    "LogFile",
    "MeshEndpoint",
    "NDSlice",
    "NameTaken",
    "NameUnknown",
    "NotAnEndpoint",
    "Point",
    "ProcMesh",
    "Region",
    "Replicate",
    "RestartPolicy",
    "SPMDActor",
    "Shape",
    "Slice",
    "ValueMesh",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "default_bootstrap_cmd",
    "find",
    "get_or_spawn_controller",
    "lookup",
    "names",
    "publish",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "setup_torch_elastic_env",
    "setup_torch_elastic_env_async",
    "shutdown",
    "shutdown_context",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "unpublish",
]
