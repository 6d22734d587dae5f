"""The command line: `roost ps`, `roost logs`, `roost stacks`, `roost clean`, `roost version`.

It looks after the jobs of this user on this host, and starts in a moment: what a command needs is imported when it
runs.
"""

from __future__ import annotations

from .parser import main

__all__ = ["main"]
