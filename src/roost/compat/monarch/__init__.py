"""Programs written for Monarch (PyPI `torchmonarch`), run on Roost unchanged.

    python -m roost.compat.monarch script.py --its-arguments
    python -m roost.compat.monarch -m package.module

or, first of all in the program, `roost.compat.monarch.install()`: after it `import monarch`, `monarch.actor` and their
kin give Roost, here and in every worker. Importing this module changes nothing.
"""

from __future__ import annotations

import os

from ...actors.policy import WORKER_SETUP, Policy, set_policy
from .finder import put_first

__all__ = ["install", "install_worker"]

_SETUP = f"{__name__}:install_worker"
_STRICT = "ROOST_MONARCH_STRICT"

MANNERS = Policy(timeout_cancels=False, warn_get_in_loop=True, exit_kills=True)
"""What a program for Monarch may rely on; where it cannot tell, Roost's own manners."""

STRICT = Policy(
    exit_kills=True,
    mix_sync_async=False,
    fail_fast=False,
    joint_exceptions=False,
    told_is_handled=False,
    timeout_cancels=False,
    warn_get_in_loop=True,
)
"""Monarch's manners to the letter."""


def install(*, strict: bool = False) -> None:
    """Let `import monarch` give Roost, in this process and in every worker spawned from now on. Idempotent.

    By default programs for Monarch run unchanged and get what Roost does better: sync and async endpoints may stand in
    one actor, `call` fails at the first failure, a remote exception is also of its own type, and a failure that the
    program has caught does not end it. With `strict` none of these. An installed Monarch is not found any more.
    Raises RuntimeError when that has been imported already.

    >>> install()                                                    # doctest: +SKIP
    >>> import monarch.actor                                         # doctest: +SKIP
    >>> monarch.actor.Actor is roost.Actor                           # doctest: +SKIP
    True
    """
    put_first()
    set_policy(STRICT if strict else MANNERS)
    if _SETUP not in WORKER_SETUP:
        WORKER_SETUP.append(_SETUP)
    os.environ[_STRICT] = "1" if strict else "0"
    _graft(strict)


def install_worker() -> None:
    """The same in a worker; its policy has come from whoever spawned it."""
    from . import config

    put_first()
    config.take_over()
    _graft(os.environ.get(_STRICT) == "1")


def _graft(strict: bool) -> None:
    from . import grafts  # imports all of roost.mesh

    grafts.graft(strict)
