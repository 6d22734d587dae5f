"""Actor: the base class of what lives on a mesh."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from .endpoint import endpoints_of
from .mailbox import Mailbox

# What an actor mesh has itself; an endpoint of that name could not be reached.
RESERVED = frozenset(
    [
        "stop",
        "slice",
        "split",
        "flatten",
        "rename",
        "size",
        "sizes",
        "extent",
        "initialized",
        "name",
        "region",
        "respawn",
        "statistics",
    ]
)


class Actor:
    """Base class of actors. `__init__` runs on the worker, with the arguments given to `spawn`.

    One home thread runs `__init__`, every endpoint that has no lane, and every hook. The class may say, and subclasses
    inherit:

    lanes
        `class A(Actor, lanes={"health": 1, "io": 4})`: how many calls of a lane's endpoints run at once (`endpoint`).
    mailbox
        `class A(Actor, mailbox=Mailbox(limit=100, policy="fail"))`: how many messages may wait (`Mailbox`).

    Hooks, all optional, all `def` or `async def`:

    `__supervise__(self, failure: MeshFailure) -> bool`
        A mesh that this actor spawned has failed. True: handled. Otherwise this actor fails in turn, and its owner is
        asked. Runs before messages that wait.
    `__restore__(self, restart: Restart)`
        Ranks of the mesh were started anew (`ProcMesh.respawn`, or a restart policy): on those, after `__init__`, with
        `restart.fresh`; on the others, which rebuild what they share with the dead, such as process groups. Runs before
        messages that wait. One that raises fails the actor.
    `__cleanup__(self, error: Exception | None)`
        The actor ends: `error` is None on a normal stop. Meshes it spawned have been stopped already.

    >>> from roost.actors import Actor, endpoint
    >>> class Echo(Actor):
    ...     @endpoint
    ...     def echo(self, value): return value
    """

    def __init_subclass__(
        cls, *, lanes: Mapping[str, int] | None = None, mailbox: Mailbox | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if lanes is not None:
            for name, size in lanes.items():
                if not isinstance(size, int) or size < 1:
                    raise ValueError(f"{cls.__qualname__}: lane {name!r} has size {size!r}, it must be at least 1")
            cls._roost_lanes = {**cls._roost_lanes, **lanes}
        endpoints = endpoints_of(cls)
        for name, definition in endpoints.items() if cls._roost_lanes else ():
            if definition.lane and definition.lane not in cls._roost_lanes:
                known = ", ".join(cls._roost_lanes)
                raise ValueError(f"{cls.__qualname__}.{name}: there is no lane {definition.lane!r}, lanes= has {known}")
        if mailbox is not None:
            if not isinstance(mailbox, Mailbox):
                raise TypeError(f"{cls.__qualname__}: mailbox={mailbox!r} is no Mailbox(limit=…, policy=…)")
            cls._roost_mailbox = mailbox
        taken = sorted(RESERVED & set(endpoints))
        if taken:
            raise ValueError(
                f"{cls.__qualname__}: an endpoint cannot be called {', '.join(map(repr, taken))}, "
                "an actor mesh has that itself; rename it"
            )

    _roost_lanes: ClassVar[dict[str, int]] = {}
    _roost_mailbox: ClassVar[Mailbox | None] = None

    @cached_property
    def logger(self) -> logging.Logger:
        """A logger named after the class."""
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__}>"
