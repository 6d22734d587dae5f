"""Actor: the base class of what lives on a mesh."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from .endpoint import endpoints_of

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
        "statistics",
    ]
)


class Actor:
    """Base class of actors. `__init__` runs on the worker, with the arguments given to `spawn`.

    One home thread runs `__init__`, every endpoint and every hook. Hooks, both optional, both `def` or `async def`:

    `__supervise__(self, failure: MeshFailure) -> bool`
        A mesh that this actor spawned has failed. True: handled. Otherwise this actor fails in turn, and its owner is
        asked. Runs before messages that wait.
    `__cleanup__(self, error: Exception | None)`
        The actor ends: `error` is None on a normal stop. Meshes it spawned have been stopped already.

    >>> from roost.actors import Actor, endpoint
    >>> class Echo(Actor):
    ...     @endpoint
    ...     def echo(self, value): return value
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = sorted(RESERVED & set(endpoints_of(cls)))
        if taken:
            raise ValueError(
                f"{cls.__qualname__}: an endpoint cannot be called {', '.join(map(repr, taken))}, "
                "an actor mesh has that itself; rename it"
            )

    @cached_property
    def logger(self) -> logging.Logger:
        """A logger named after the class."""
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__}>"
