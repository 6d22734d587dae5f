"""Faults: failures that nobody handled, at the top. What the program is told, once, and how it ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from .errors import MeshFailure
from .future import Future
from .link.io import IoThread
from .link.readers import interrupt_with
from .ranks import spell

FOLD_WINDOW = 0.05  # seconds in which further failures join the report of the first
_TOLD_RANKS = 8


class UnhandledFailure(SystemExit):
    """Ends a script with exit code 1 after the report of failures that nobody handled; `finally` blocks run.

    Attributes: `failures`, those that were reported.
    """

    def __init__(self, failures: Sequence[MeshFailure]) -> None:
        super().__init__(1)
        self.failures = tuple(failures)


class Faults:
    """Tells the program of failures. On the I/O thread; hooks are called on the callback thread.

    The default hook tells of all that come within `FOLD_WINDOW` at once; a hook of the user's is called for each.
    """

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._waiting: list[MeshFailure] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<Faults: {len(self._waiting)} wait to be told>"

    def report(self, failure: MeshFailure) -> None:
        """Call the hook that stands in `roost.actors.unhandled_fault_hook` now."""
        from .. import actors

        if self._closed:
            sys.stderr.write(told([failure]))
        elif actors.unhandled_fault_hook is not default_fault_hook:
            _call(lambda: actors.unhandled_fault_hook(failure))
        else:
            self._waiting.append(failure)
            if len(self._waiting) == 1:
                self._io.loop.call_later(FOLD_WINDOW, self._tell)

    def _tell(self) -> None:
        failures, self._waiting = self._waiting, []
        if failures:
            _call(lambda: _report_and_end(failures))

    def close(self) -> list[MeshFailure]:
        """The program ends: the failures that it has not been told of. Later ones are written, and end nothing."""
        self._closed = True
        failures, self._waiting = self._waiting, []
        return failures


def _call(hook: Callable[[], object]) -> None:
    Future.completed(None).add_done_callback(lambda _: hook())


def default_fault_hook(failure: MeshFailure) -> None:
    """Write the report to stderr and, in a script, end the program with exit code 1. A notebook goes on.

    The main thread gets an `UnhandledFailure`, a SystemExit, as it would get a KeyboardInterrupt: `finally` blocks
    and exit handlers run, and nothing that was spawned stays. Code that swallows it goes on; it comes once. Where the
    program has a SIGINT handler of its own, that is called instead.
    """
    _report_and_end([failure])


def _report_and_end(failures: Sequence[MeshFailure]) -> None:
    sys.stderr.write(told(failures))
    sys.stderr.flush()
    if not in_notebook():
        interrupt_with(UnhandledFailure(failures))


def told(failures: Sequence[MeshFailure]) -> str:
    """The report of failures: those that differ in rank, process and time alone are told once, with their ranks.

    >>> dead = [MeshFailure(f"worker {i} (pid 4{i}) died", mesh_name="t", crashed_ranks=(i,)) for i in range(3)]
    >>> print(told(dead), end="")
    Roost: a failure that nobody handled
    mesh 't', ranks 0-2: worker 0 (pid 40) died (the other 2 alike)
    """
    alike: dict[tuple[str, str], list[MeshFailure]] = {}
    for failure in failures:
        alike.setdefault((failure.mesh_name, re.sub(r"\d+(\.\d+)?", "#", failure.report())), []).append(failure)
    what = "a failure" if len(alike) == 1 else f"{len(alike)} failures"
    lines = [f"Roost: {what} that nobody handled"]
    for group in alike.values():
        group.sort(key=lambda failure: failure.crashed_ranks)
        head, newline, rest = group[0].report().partition("\n")
        if len(group) > 1:
            ranks = spell({rank for failure in group for rank in failure.crashed_ranks}, most=_TOLD_RANKS)
            head = head.replace(f"ranks {list(group[0].crashed_ranks)}", f"ranks {ranks}", 1)
            head += f" (the other {len(group) - 1} alike)"
        lines.append(head + newline + rest)
    return "\n".join(lines) + "\n"


def in_notebook() -> bool:
    """Whether this program is an IPython session or a notebook kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


__all__ = ["Faults", "UnhandledFailure", "default_fault_hook", "in_notebook", "told"]
