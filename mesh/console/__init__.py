"""What the workers print, at the program that spawned them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...actors.node import Node
from ...actors.refs import ProcRef
from .output import Console
from .screen import Screen, notebook_shell

__all__ = ["Console", "console"]


def console(node: Node, agents: Callable[[], Sequence[ProcRef]]) -> Console:
    """The console of this program: the outputs of its cells in a notebook, else `sys.stdout`."""
    shell = notebook_shell()
    if shell is None:
        return Console(Screen())
    from .notebook import NotebookCells, NotebookScreen

    cells = NotebookCells(shell, node, agents)
    made = Console(NotebookScreen(), cells)
    cells.flush = made.flush
    return made
