"""What the agent tells a new worker about itself, as plain lists for msgpack."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields
from typing import Any

import msgpack

ADOPTED = signal.SIGUSR1
"""Blocked in zygotes; a new worker gets it when the intermediate process ends and the agent adopts it."""

OWNER_VARIABLE = "ROOST_PROC_ID"
"""Tells a worker, and the programs it starts, whose they are."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A worker's start, decided: `env` holds the changes to make after the fork (None removes), or with `only_env` all
    there is.

    `argv` is the command line to exec, None to go on in the forked process; `program` is what is started by it.
    """

    proc_id: int
    name: str
    entry: str
    payload: bytes
    output: str
    agent_pid: int
    env: dict[str, str | None]
    cpus: tuple[int, ...]
    cwd: str | None
    sys_path: tuple[str, ...]
    argv: tuple[str, ...] | None
    program: str | None = None
    only_env: bool = False

    def to_wire(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self)]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> WorkerPlan:
        values = dict(zip((f.name for f in fields(cls)), wire, strict=True))
        for name in ("cpus", "sys_path"):
            values[name] = tuple(values[name])
        if values["argv"] is not None:
            values["argv"] = tuple(values["argv"])
        return cls(**values)

    def pack(self) -> bytes:
        return bytes(msgpack.packb(self.to_wire()))

    @classmethod
    def unpack(cls, data: bytes) -> WorkerPlan:
        return cls.from_wire(msgpack.unpackb(data))
