"""Where a process is, and how references to processes and actors travel in messages."""

from __future__ import annotations

import os
import random
import secrets
from dataclasses import dataclass
from typing import Any

ROOT_ACTOR = 1  # the controller's own program, which owns what it spawns outside any actor
SYSTEM_ACTOR = 0  # Roost's own requests: spawn an actor, stop, statistics

_numbers = random.Random(secrets.randbits(128))


def new_id() -> int:
    """A number that no other process, actor, port or call of the job will draw (62 random bits)."""
    return _numbers.getrandbits(62) | 16


def reseed() -> None:
    """After a fork, so that parent and child do not draw alike."""
    _numbers.seed(secrets.randbits(128))


os.register_at_fork(after_in_child=reseed)  # workers of one zygote, and children that users fork


@dataclass(frozen=True, slots=True)
class ProcRef:
    """Where a process is: its own socket on its host, and the agent that relays to it from other hosts."""

    proc_id: int
    name: str
    node_id: str
    host: str
    address: str
    agent_id: int
    agent_address: str
    epoch: int = 1

    def to_wire(self) -> list[Any]:
        return [
            self.proc_id,
            self.name,
            self.node_id,
            self.host,
            self.address,
            self.agent_id,
            self.agent_address,
            self.epoch,
        ]

    @classmethod
    def from_wire(cls, values: list[Any]) -> ProcRef:
        return cls(*values)

    def __repr__(self) -> str:
        return f"<process {self.name} on {self.host}>"

    def __reduce__(self) -> Any:
        return ProcRef, tuple(self.to_wire())


@dataclass(frozen=True, slots=True)
class ActorId:
    """An actor: the process it lives in and its number there. All members of a mesh share the number."""

    proc_id: int
    actor_id: int
