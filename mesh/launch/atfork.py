"""Hooks for the children that *user code* forks in a worker (DataLoader, multiprocessing).

Such a child holds a copy of every Roost descriptor: a peer would not see the socket of a dead worker
close for as long as the child lives (2.9 s in one measurement, for ever with a stuck one).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_callbacks: list[Callable[[], None]] = []
_registered = False


def on_user_fork(close_callback: Callable[[], None]) -> Callable[[], None]:
    """Run `close_callback` in every child forked by Python from now on; returns a call that undoes it.

    It runs in the child, in the forking thread, before any user code: close descriptors by number
    and touch no lock, no loop and no other thread's object. Its exceptions are swallowed by the
    interpreter with a line on stderr. A child made by fork(2) from C code is not seen.
    """
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_run)
        _registered = True
    _callbacks.append(close_callback)

    def undo() -> None:
        if close_callback in _callbacks:
            _callbacks.remove(close_callback)

    return undo


def _run() -> None:
    callbacks, _callbacks[:] = list(_callbacks), []  # a grandchild has nothing left to close
    with contextlib.ExitStack() as stack:  # all of them run, whichever raises
        for callback in reversed(callbacks):
            stack.callback(callback)
