"""Processes that outlived the worker they came from.

Being a subreaper, the agent becomes the parent of every descendant whose own parent has died, also
of one in its own session. Which worker it came from is not always written on it, so:

1. its session is a worker's: it belongs to that worker;
2. its first environment names a worker (it was exec'd by one): it belongs to that worker;
3. first seen at the very death of a worker: it is that worker's;
4. first seen at another time (a daemon that detached itself): any worker that lived then may be its
   parent, and it goes with the last of them.

Children in the agent's own session are the agent's (its `nvidia-smi`): zygotes lead sessions of
their own, so nothing of theirs is ever there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from . import linux
from .plan import OWNER_VARIABLE
from .reaper import Reaper, Watch


def owners_of(
    session: int,
    marked: int | None,
    session_of: dict[int, int],
    live: Collection[int],
    just_died: Collection[int],
) -> frozenset[int]:
    """The proc_ids a stray may belong to, by the rules at the top; `session_of` maps session to proc_id."""
    if (owner := session_of.get(session)) is not None:
        return frozenset((owner,))
    if marked is not None:
        return frozenset((marked,))
    return frozenset(just_died or live)


def marked_owner(pid: int) -> int | None:
    text = linux.read_text(f"/proc/{pid}/environ") or ""
    for entry in text.split("\0"):
        name, _, value = entry.partition("=")
        if name == OWNER_VARIABLE and value.isdigit():
            return int(value)
    return None


def kill_tree(root: linux.ProcStat) -> int:
    """SIGKILL `root` and all below it; how many. What is forked meanwhile comes to the subreaper."""
    below = linux.descendants(root.pid)
    return sum(linux.kill_exactly(process, signal.SIGKILL) for process in (root, *below))


@dataclass(frozen=True, slots=True)
class Stray:
    """A child of the agent that nobody launched, and the workers it may have come from."""

    process: linux.ProcStat
    owners: frozenset[int]
    watch: Watch


class Strays:
    """Finds, kills and reaps what dead workers left.

    `again` is called at a stray's death: its own children are strays from then on.
    """

    def __init__(self, reaper: Reaper, again: Callable[[], None]) -> None:
        self._reaper = reaper
        self._again = again
        self._found: dict[int, Stray] = {}

    def __len__(self) -> int:
        return len(self._found)

    def sweep(self, live: Collection[int], just_died: Collection[int], session_of: dict[int, int]) -> None:
        """Take note of new strays and kill those that no live worker may own."""
        own_session = os.getsid(0)
        for pid in linux.children(os.getpid()):
            if pid in self._reaper or (process := linux.stat(pid)) is None or process.session == own_session:
                continue
            owners = owners_of(process.session, marked_owner(pid), session_of, live, just_died)
            watch = self._reaper.watch(pid, partial(self._gone, pid))
            self._found[pid] = Stray(process, owners, watch)
        for stray in list(self._found.values()):
            if stray.owners.isdisjoint(live):
                kill_tree(stray.process)

    def of(self, proc_ids: Collection[int]) -> list[asyncio.Future[linux.ExitStatus]]:
        """The deaths still to come of strays owned by nobody but these."""
        return [stray.watch.done for stray in self._found.values() if stray.owners <= set(proc_ids)]

    def all(self) -> list[asyncio.Future[linux.ExitStatus]]:
        return [stray.watch.done for stray in self._found.values()]

    def _gone(self, pid: int, status: linux.ExitStatus) -> None:
        del self._found[pid]
        self._again()
