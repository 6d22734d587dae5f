"""Meshes: hosts, processes and actors in named dimensions."""

from __future__ import annotations

from .actormesh import ActorMesh
from .hostmesh import BootstrapCommand, HostMesh
from .local import shutdown, this_host, this_proc
from .procmesh import ProcMesh
from .shape import Extent, Point, Shape
from .valuemesh import ValueMesh

__all__ = [
    "ActorMesh",
    "BootstrapCommand",
    "Extent",
    "HostMesh",
    "Point",
    "ProcMesh",
    "Shape",
    "ValueMesh",
    "shutdown",
    "this_host",
    "this_proc",
]
