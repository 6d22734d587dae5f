"""Actors: what lives on a mesh, how it is called, and what happens when it fails."""

from __future__ import annotations

from .accumulator import Accumulator
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
from .faults import UnhandledFailure
from .faults import default_fault_hook as unhandled_fault_hook
from .future import Future
from .mailbox import Mailbox
from .policy import Policy, policy, set_policy
from .port import Channel, Port, PortClosed, PortReceiver, PortStatistics
from .restart import Restart
from .returns_future import returns_future
from .send import send
from .streams import ItemStream
from .waiting import as_completed, wait

__all__ = [
    "Accumulator",
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
    "ItemStream",
    "Mailbox",
    "MeshFailure",
    "Policy",
    "Port",
    "PortClosed",
    "PortReceiver",
    "PortStatistics",
    "Restart",
    "RoostError",
    "SupervisionError",
    "UnhandledFailure",
    "Unreachable",
    "as_completed",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "policy",
    "returns_future",
    "send",
    "set_policy",
    "unhandled_fault_hook",
    "wait",
]
