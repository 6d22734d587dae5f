"""The controller's side: jobs, which say where hosts come from, the console, and the command line.

Nothing is imported before it is used, because the command line is to start in a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs import JobState, ProcessJob

__all__ = ["JobState", "ProcessJob"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import jobs

    return getattr(jobs, name)
