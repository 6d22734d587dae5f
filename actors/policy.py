"""Policy: where a user of another system expects other manners, they are chosen here, once, before the first spawn.

Each field is read at one place, which its comment names. Workers get the policy of whoever spawned them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Policy:
    """How Roost behaves where its own manners and those of other systems differ.

    Attributes:
        mix_sync_async: one actor may have sync and async endpoints (checked by `ProcMesh.spawn`).
        fail_fast: a mesh call fails at its first failure plus 50 ms, not after all ranks have answered.
        joint_exceptions: a remote exception is also of its own type, not an ActorError alone.
        told_is_handled: a failure that was raised out of some `get()` or `await` counts as handled.
        timeout_cancels: a `get` whose timeout passes cancels the call; otherwise the future stays usable.
        warn_get_in_loop: `get()` in a thread with a running event loop warns.
        forward_output: what workers print appears at the controller.
        exit_kills: `sys.exit()` in an endpoint ends its actor, instead of being raised at the caller alone.

    >>> Policy().fail_fast
    True
    """

    mix_sync_async: bool = True  # actors/endpoint.py, check_kind
    fail_fast: bool = True  # mesh/endpoints.py, the default of a call
    joint_exceptions: bool = True  # actors/travel.py, _joint_type
    told_is_handled: bool = True  # actors/supervision.py, Failure.delivered
    timeout_cancels: bool = True  # actors/future.py, get
    warn_get_in_loop: bool = False  # actors/future.py, get
    forward_output: bool = True  # mesh/hostmesh.py, spawn_procs
    exit_kills: bool = False  # actors/cell.py, raised

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> Policy:
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


_current = [Policy()]

WORKER_SETUP: list[str] = []
"""Functions, as "module:function", that every worker spawned from here calls before anything of the user's runs."""


def policy() -> Policy:
    """The policy of this process."""
    return _current[0]


def set_policy(chosen: Policy) -> None:
    """Choose the policy of this process and of what it spawns from now on."""
    _current[0] = chosen
