"""The zygotes of one host: started when first needed, kept warm, replaced when they die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from .nursery import Unfit, ZygoteDied, ZygoteHandle
from .reaper import Reaper
from .spec import BARE, ZygoteKey

Progress = Callable[[str], None]
MAX_ZYGOTES = 4
"""Kept beside the bare one; each holds about 200 MB with torch."""
_CLOSE_SECONDS = 2.0


class ZygotePool:
    """One zygote for each key. A preload that makes a zygote unfit, or kills it twice, is dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reaper: Reaper, run_dir: Path) -> None:
        self._loop = loop
        self._reaper = reaper
        self._run_dir = run_dir
        self._starting: dict[ZygoteKey, asyncio.Task[ZygoteHandle]] = {}
        self._listeners: dict[ZygoteKey, list[Progress]] = {}
        self._dropped: dict[ZygoteKey, dict[str, str]] = {}
        self._handles: list[ZygoteHandle] = []
        self._started = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._starting)

    def __repr__(self) -> str:
        return f"<ZygotePool {[handle for handle in self._handles if handle.alive]}>"

    def pids(self) -> dict[ZygoteKey, int]:
        """The zygotes that live now."""
        return {h.key: h.pid for h in self._handles if h.alive and h.pid is not None}

    def has_room(self, key: ZygoteKey) -> bool:
        """Whether a zygote for `key` exists or may be added without ending another."""
        return key == BARE or key in self._starting or len(self._starting.keys() - {BARE}) < MAX_ZYGOTES

    async def ready(self, key: ZygoteKey, progress: Progress) -> ZygoteHandle:
        """The zygote for `key`, waiting for its imports as long as it lives. Raises ZygoteDied."""
        if self._closed:
            raise ZygoteDied("the launcher is closed", None)
        if (task := self._usable(key)) is None:
            await self._make_room(key)
            if (task := self._usable(key)) is None:
                task = self._starting[key] = self._loop.create_task(self._start(key))
        listeners = self._listeners.setdefault(key, [])
        listeners.append(progress)
        try:
            await asyncio.wait({task})  # not awaited itself: giving up waiting must not end it for others
            return task.result()
        finally:
            listeners.remove(progress)

    def _usable(self, key: ZygoteKey) -> asyncio.Task[ZygoteHandle] | None:
        """The task of a zygote that is starting or alive."""
        task = self._starting.get(key)
        if task is None or not task.done():
            return task
        if not task.cancelled() and task.exception() is None and task.result().alive:
            return task
        del self._starting[key]
        return None

    async def _make_room(self, key: ZygoteKey) -> None:
        if self.has_room(key):
            return
        idle = [h for h in self._handles if h.alive and h.key != BARE and not h.in_flight]
        if idle:
            oldest = min(idle, key=lambda handle: handle.last_used)
            await self.discard(oldest)

    async def _start(self, key: ZygoteKey) -> ZygoteHandle:
        dropped = self._dropped.setdefault(key, {})
        deaths: dict[str | None, int] = {}
        while True:
            self._started += 1
            log = self._run_dir / f"zygote-{self._started}.log"
            handle = ZygoteHandle(self._loop, self._reaper, key, log)
            self._handles.append(handle)
            try:
                await handle.start([m for m in key.preload if m not in dropped], lambda s: self._tell(key, s))
            except Unfit as unfit:
                await self.discard(handle)
                module = str(unfit.module)
                dropped[module] = f"preload {module!r} was dropped, the zygote cannot fork with it: {unfit}"
            except ZygoteDied as died:
                await self.discard(handle)
                deaths[died.importing] = deaths.get(died.importing, 0) + 1
                if self._closed or deaths[died.importing] == 2:
                    if self._closed or died.importing is None:
                        raise
                    dropped[died.importing] = f"preload {died.importing!r} was dropped: {died}"
            else:
                handle.notes.extend(dropped.values())
                return handle
            self._tell(key, f"{key} is started again")

    def _tell(self, key: ZygoteKey, sentence: str) -> None:
        for progress in self._listeners.get(key, ()):
            progress(sentence)

    async def drop_preloads(self, handle: ZygoteHandle, reason: str) -> None:
        """A zygote that was fit after its imports is not any more: nobody knows by which of them."""
        dropped = self._dropped.setdefault(handle.key, {})
        for module in handle.key.preload:
            note = f"preload {module!r} was dropped, its zygote cannot fork any more: {reason}"
            dropped.setdefault(module, note)
        await self.discard(handle)

    async def discard(self, handle: ZygoteHandle) -> None:
        """End a zygote, if it lives; the next `ready` starts another."""
        task = self._starting.get(handle.key)
        if task is not None and task.done() and task.exception() is None and task.result() is handle:
            del self._starting[handle.key]
        if handle in self._handles:
            self._handles.remove(handle)
        await handle.close(_CLOSE_SECONDS)

    async def close(self) -> None:
        """End all of them, also those still importing."""
        self._closed = True
        for handle in list(self._handles):
            handle.kill()
        if tasks := list(self._starting.values()):
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # also marks their errors as seen
        for handle in list(self._handles):
            await self.discard(handle)
        self._starting.clear()
