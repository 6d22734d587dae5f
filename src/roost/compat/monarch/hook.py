"""`unhandled_fault_hook`, which programs replace by assigning to a module: `monarch.actor.unhandled_fault_hook = f`.

It is the hook of `roost.actors`; there it must return, while Monarch's may also end the program by raising.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from ... import actors
from ...actors.errors import MeshFailure
from ...actors.faults import default_fault_hook

NAME = "unhandled_fault_hook"
Hook = Callable[[MeshFailure], Any]


class _Ending:
    """A user's hook; when it raises, Roost's own ends the program."""

    def __init__(self, function: Hook) -> None:
        self.function = function

    def __call__(self, failure: MeshFailure) -> None:
        try:
            self.function(failure)
        except SystemExit:
            default_fault_hook(failure)
        except Exception as error:  # noqa: BLE001 - told, and the program ended
            traceback.print_exception(error)
            default_fault_hook(failure)


def current() -> Hook:
    """The hook that stands now, as it was set."""
    hook: Hook = actors.unhandled_fault_hook
    return hook.function if isinstance(hook, _Ending) else hook


def replace(function: Hook) -> None:
    """Set the hook."""
    actors.unhandled_fault_hook = function if function is default_fault_hook else _Ending(function)


def reset() -> None:
    """Set Roost's own again."""
    actors.unhandled_fault_hook = default_fault_hook
