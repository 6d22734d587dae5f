"""RestartPolicy: whether a process that has died is started anew, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and how soon, dead processes of a mesh are started anew by themselves. For `spawn_procs(restart=)`.

    The first restart waits for `backoff`, each further one within `within` seconds twice as long as the one before,
    at most `max_backoff`. Ranks that die while a restart waits are started anew together with it, under one epoch,
    and count as one restart: that is what the first wait is for.

    Attributes:
        max_restarts: restarts of the mesh within `within` seconds; one more failure goes to the owner.
        within: seconds; a restart that is longer ago does not count any more.
        backoff: seconds before the first restart.
        max_backoff: seconds that a restart waits at most.
        jitter: a wait is made longer by up to this share of it, at random, so that many meshes do not start at once.

    >>> policy = RestartPolicy(max_restarts=3, backoff=1.0, jitter=0.0)
    >>> [policy.next_delay([0.0, 5.0][:done], now=10.0) for done in range(3)]
    [1.0, 2.0, 4.0]
    >>> policy.next_delay([0.0, 5.0, 9.0], now=10.0) is None
    True
    """

    max_restarts: int = 3
    within: float = 600.0
    backoff: float = 0.1
    max_backoff: float = 30.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("max_restarts", "within", "backoff", "max_backoff", "jitter"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"RestartPolicy.{name} is a number that is not negative, and {value!r} is none")

    def recent(self, history: Sequence[float], now: float) -> int:
        """How many of the restarts at the times `history` still count."""
        return sum(now - time < self.within for time in history)

    def next_delay(self, history: Sequence[float], now: float) -> float | None:
        """Seconds until the next restart, when there have been restarts at the times `history`; None: no more."""
        done = self.recent(history, now)
        if done >= self.max_restarts:
            return None
        delay = min(self.backoff * 2.0 ** min(done, 64), self.max_backoff)
        return delay * (1.0 + self.jitter * random.random())
