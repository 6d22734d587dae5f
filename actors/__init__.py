"""Actors: what lives on a mesh, how it is called, and what happens when it fails."""

from __future__ import annotations

from .actor import Actor
from .context import Context, context, current_actor_name, current_rank, current_size
from .endpoint import concurrent_endpoint, endpoint
from .errors import (
    ActorDied,
    ActorError,
    ActorStopped,
    Busy,
    CallCancelled,
    CallTimeout,
    MeshFailure,
    RoostError,
    SupervisionError,
    Unreachable,
)
from .future import Future
from .port import Channel, Port, PortReceiver
from .supervision import default_fault_hook as unhandled_fault_hook

__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "ActorStopped",
    "Busy",
    "CallCancelled",
    "CallTimeout",
    "Channel",
    "Context",
    "Future",
    "MeshFailure",
    "Port",
    "PortReceiver",
    "RoostError",
    "SupervisionError",
    "Unreachable",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "unhandled_fault_hook",
]
